#!/usr/bin/env bash
# The modules of a real Linux kernel: Debian's package is downloaded and unpacked, not installed. `kmem modinfo` must say
# what kmod's modinfo says, byte for byte, of every one; and each is checked, laid out and relocated against stubs.
#
#   scripts/kernel-modules.sh [DIRECTORY]     with modules that are there already, rather than a package
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

modules=${1:-}
if [ -z "$modules" ]; then
  package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -1)
  echo "== $package"
  (cd "$work" && apt-get download -q "$package" && dpkg-deb -x ./*.deb kernel)
  modules=$work/kernel
fi
modinfo=$(PATH=$PATH:/sbin:/usr/sbin command -v modinfo) || { echo "modinfo is missing: install kmod"; exit 1; }
cargo build -q -p kmem-cli
kmem=${CARGO_TARGET_DIR:-target}/debug/kmem

find "$(realpath "$modules")" -name '*.ko' | sort >"$work/list"
echo "== modinfo of $(wc -l <"$work/list") modules"
xargs "$modinfo" <"$work/list" >"$work/kmod.txt"
xargs "$kmem" modinfo <"$work/list" >"$work/kmem.txt"
cmp "$work/kmod.txt" "$work/kmem.txt"
echo "same, $(wc -l <"$work/kmod.txt") lines"

# Compressed, they say the same, but for their names.
head -20 "$work/list" | while read -r file; do
  for tool in gzip xz zstd; do
    $tool -q -c "$file" >"$work/packed"
    cmp <("$modinfo" "$file" | tail -n +2) <("$kmem" modinfo "$work/packed" | tail -n +2)
  done
done
echo "same, compressed with gzip, xz and zstd"

echo "== checks, layout, relocations"
KMEM_KERNEL_MODULES=$(realpath "$modules") cargo test -q -p kmem-module --test kernel_modules -- --ignored --nocapture
