#!/usr/bin/env bash
# The modules of real Linux kernels, x86-64 and AArch64: Debian's packages are downloaded and
# unpacked, not installed. `kmem modinfo` must say what kmod's modinfo says, byte for byte, of every
# one; and each is checked, laid out and relocated against stubs. Some 10,000 modules, 3 GiB of
# temporary space.
#
#   scripts/kernel-modules.sh                      both
#   scripts/kernel-modules.sh MACHINE DIRECTORY    modules that are there already; MACHINE is x86_64
#                                                  or aarch64
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/debian-kernel.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

modinfo=$(PATH=$PATH:/sbin:/usr/sbin command -v modinfo) || {
  echo "modinfo is missing: install kmod"
  exit 1
}
cargo build -q -p kmem-cli
kmem=$(realpath "${CARGO_TARGET_DIR:-target}/debug/kmem")

check() {
  local machine=$1 modules=$2
  find "$(realpath "$modules")" -name '*.ko' | sort >"$work/list"
  xargs "$modinfo" <"$work/list" >"$work/kmod.txt"
  xargs "$kmem" modinfo <"$work/list" >"$work/kmem.txt"
  cmp "$work/kmod.txt" "$work/kmem.txt"
  echo "modinfo of $(wc -l <"$work/list") modules: the same $(wc -l <"$work/kmod.txt") lines"
  # Compressed they say the same, but for their names.
  while read -r file; do
    for tool in gzip xz zstd; do
      $tool -q -c "$file" >"$work/packed"
      cmp <("$modinfo" "$file" | tail -n +2) <("$kmem" modinfo "$work/packed" | tail -n +2)
    done
  done < <(head -20 "$work/list")
  echo "the same compressed with gzip, xz and zstd"
  KMEM_KERNEL_MACHINE=$machine KMEM_KERNEL_MODULES=$(realpath "$modules") \
    cargo test -q -p kmem-module --test kernel_modules -- --ignored --nocapture | grep ' modules, '
}

if [ $# -eq 2 ]; then
  check "$1" "$2"
  exit
fi
for pair in amd64:x86_64 arm64:aarch64; do
  fetch_kernel "${pair%:*}" "$work" "$work/kernel"
  check "${pair#*:}" "$work/kernel"
  rm -rf "$work/kernel"
done
