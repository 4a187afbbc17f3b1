#!/usr/bin/env bash
#
# Restartable sequences on AArch64, under a kernel of Debian's in an emulated machine of two CPUs.
# qemu-user has none of these. It has no addresses above 2^47 either, where this kernel puts
# programs. Tests of the core run there, and a program whose threads migrate and take signals under
# libkmem.so. The kernel is kept in target/aarch64-kernel.
#
#	scripts/aarch64-kernel.sh [--seconds N] [--product]
#
# With --product, the command is built for the machine, too (some 3 minutes). It must name the
# callers behind a wrapper, also by signed return addresses, and the lines of a Python of Debian's.
#
# Needs root or a user who may run apt-get, qemu-system-aarch64, aarch64-linux-gnu-gcc and cpio.
# Without them it records that it did not run (not-run.sh), and succeeds.
set -euo pipefail
repository=$(realpath "$(dirname "$0")/..")
. "$repository/scripts/not-run.sh"
. "$repository/scripts/debian-kernel.sh"
. "$repository/scripts/options.sh"

seconds=900
product=0
read_options "seconds product!" "$@"
cd "$repository"

for tool in qemu-system-aarch64 aarch64-linux-gnu-gcc cpio dpkg-deb apt-get; do
  command -v "$tool" >/dev/null || {
    not_run aarch64-kernel.sh "there is no $tool"
    exit 0
  }
done
linux=aarch64-unknown-linux-gnu
rustup target add "$linux" >/dev/null 2>&1 || {
  not_run aarch64-kernel.sh "rustup has no such target: $linux"
  exit 0
}

work=$PWD/target/aarch64-kernel
mkdir -p "$work"
if ! ls "$work"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
  fetch_kernel arm64 "$work" "$work/kernel" || {
    not_run aarch64-kernel.sh "the kernel cannot be downloaded"
    exit 0
  }
  rm -rf "$work/kernel/lib"
fi

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
root=$work/root
rm -rf "$root"
mkdir -p "$root/bin" "$root/lib"
aarch64-linux-gnu-gcc -O1 -Wall -static scripts/aarch64-kernel/init.c -o "$root/init"
for library in ld-linux-aarch64.so.1 libc.so.6 libgcc_s.so.1; do
  cp -L "/usr/aarch64-linux-gnu/lib/$library" "$root/lib/"
done
while read -r test path; do
  aarch64-linux-gnu-strip -g -o "$root/bin/$test" "$path"
done < <(cargo test --no-run -p kmem-core --target "$linux" --lib --test slots --test percpu \
  --message-format json | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["profile"]["test"]:
        print(message["target"]["name"], message["executable"])')
cargo build --release -p kmem-preload --target "$linux"
aarch64-linux-gnu-strip -g -o "$root/lib/libkmem.so" "target/$linux/release/libkmem.so"
aarch64-linux-gnu-gcc -O1 -pthread crates/kmem-preload/tests/programs/stress.c -o "$root/bin/stress"
cat >"$root/commands" <<'COMMANDS'
KMEM_TEST_RSEQ=1 /bin/slots rseq_
/bin/percpu no_addition
/bin/percpu threads_
/bin/kmem_core codetag:: calls:: objects:: functions:: start:: vdso::
LD_PRELOAD=/lib/libkmem.so /bin/stress 4 3 7 migrate interrupt churn
COMMANDS
if [ "$product" = 1 ]; then
  cargo build --release -p kmem-cli --target "$linux"
  aarch64-linux-gnu-strip -g -o "$root/bin/kmem" "target/$linux/release/kmem"
  for kind in none standard; do
    aarch64-linux-gnu-gcc -O2 -mbranch-protection=$kind scripts/aarch64-kernel/callers.c \
      -o "$root/bin/callers-$kind"
    echo "/bin/kmem run --depth 3 -- /bin/callers-$kind" >>"$root/commands"
  done
  read_packages arm64 "$work"
  fetch_packages arm64 "$work" "$root/python" python3.11-minimal libpython3.11-minimal libexpat1 \
    zlib1g
  cp -L /usr/aarch64-linux-gnu/lib/libm.so.6 "$root/lib/"
  cat >"$root/lines.py" <<'LINES'
kept = []
def red():
    for i in range(3000): kept.append("x" * (200 + i % 10))
def blue():
    for i in range(100): kept.append(bytearray(5000))
red(), blue()
import os; os._exit(0)
LINES
  libraries=/python/usr/lib/aarch64-linux-gnu:/python/lib/aarch64-linux-gnu
  echo "PYTHONHOME=/python/usr LD_LIBRARY_PATH=$libraries" \
    "/bin/kmem run -- /python/usr/bin/python3.11 -S /lines.py" >>"$root/commands"
fi
(cd "$root" && find . | cpio -o -H newc 2>/dev/null | gzip -1 >"$work/initrd.gz")

timeout "$seconds" qemu-system-aarch64 -M virt -cpu max -accel tcg,thread=multi -smp 2 -m 2048 \
  -display none -monitor none -no-reboot -nodefaults -serial "file:$work/said" \
  -kernel "$work"/kernel/boot/vmlinuz-* -initrd "$work/initrd.gz" \
  -append "console=ttyAMA0 quiet panic=-1" </dev/null
ended=$(grep -c '^== ended with 0' "$work/said" || true)
[ "$ended" -eq "$(wc -l <"$root/commands")" ] || {
  cat "$work/said" >&2
  exit 1
}
# Function, bytes and objects of each row that must be there, as often as it must.
has() {
  [ "$(grep -cE "$2" "$work/said")" = "$1" ] || {
    echo "aarch64-kernel.sh: not $1 lines like $2 in $work/said" >&2
    exit 1
  }
}
if [ "$product" = 1 ]; then
  has 2 '^ +3\.3 KiB +30 +red '
  has 2 '^ +7\.7 KiB +70 +blue '
  has 2 '^ +11\.0 KiB +11 +from moss '
  has 2 '^ +11\.0 KiB +11 +from leaf '
  has 2 '^ +26\.0 KiB +13 +from honey '
  has 2 '^ +26\.0 KiB +13 +from resin '
  has 1 '300. +red.* /lines\.py:3'
  has 1 '20. +blue.* /lines\.py:5'
  echo "aarch64: kmem run names callers behind wrappers and lines of Python"
fi
echo "aarch64: restartable sequences keep every item, addition and block, on two CPUs"
