#!/usr/bin/env bash
# The core where there is no operating system, and on another machine. It is built for both `none`
# targets. Its tests and those of the loader of modules run as aarch64 Linux programs under
# qemu-user. There, locked slots take the place of restartable sequences, which aarch64-kernel.sh
# runs.
#
#	scripts/other-targets.sh [--seconds N]
#
# Needs rustup. Parts that need what is missing (a target, qemu-user, a cross compiler) are recorded
# as not run (not-run.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/not-run.sh

seconds=600
while [ $# -gt 0 ]; do
  case $1 in
  --seconds) seconds=$2; shift 2 ;;
  *) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done

# The core uses nothing of std; -D warnings would not say more.
for target in x86_64-unknown-none aarch64-unknown-none; do
  rustup target add "$target" >/dev/null 2>&1 || {
    not_run "other-targets.sh $target" "rustup has no such target"
    continue
  }
  cargo build -p kmem-core --target "$target"
  # A kernel has no C library, and no other crate either.
  crates=$(cargo tree -p kmem-core --target "$target" --edges normal --prefix none --format '{p}' |
    cut -d' ' -f1 | sort -u | xargs)
  [ "$crates" = "kmem-core kmem-layout" ] || {
    echo "other-targets.sh: kmem-core for $target takes: $crates" >&2
    exit 1
  }
  echo "$target: builds, of $crates alone"
done

linux=aarch64-unknown-linux-gnu
if ! command -v qemu-aarch64 >/dev/null || ! command -v aarch64-linux-gnu-gcc >/dev/null; then
  not_run "other-targets.sh $linux" "there is no qemu-aarch64 or no aarch64-linux-gnu-gcc"
  exit 0
fi
rustup target add "$linux" >/dev/null 2>&1 || {
  not_run "other-targets.sh $linux" "rustup has no such target"
  exit 0
}
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
# Tests of what differs: slots, groups, instances, the objects above them. Proptest's cases take
# long under emulation, so there are few.
PROPTEST_CASES=2 timeout "$seconds" cargo test -p kmem-core --target "$linux" \
  --test slots --test instances --test tags --test percpu --test linux
PROPTEST_CASES=2 timeout "$seconds" cargo test -p kmem-core --target "$linux" \
  --test memory -- mempool:: rhashtable::
# Call sites and their callers have other addresses and other frames there.
timeout "$seconds" cargo test -p kmem-core --target "$linux" --lib -- \
  codetag:: calls:: objects:: functions:: start::
cargo check -p kmem-cli --target "$linux"
# The library serves a program there, and refuses a kernel with longer pages.
cargo build --release -p kmem-preload --target "$linux"
library=$PWD/target/$linux/release/libkmem.so
hello=$(mktemp -d)
trap 'rm -rf "$hello"' EXIT
aarch64-linux-gnu-gcc -O1 crates/kmem-preload/tests/programs/realloc_contents.c -o "$hello/hello"
on_pages() {
  qemu-aarch64 -p "$1" -L /usr/aarch64-linux-gnu \
    -E LD_PRELOAD="$library" "$hello/hello"
}
on_pages 4096
for bytes in 16384 65536; do
  said=$(on_pages "$bytes" 2>&1) && {
    echo "other-targets.sh: libkmem.so starts on pages of $bytes bytes" >&2
    exit 1
  }
  grep -q "kmem: the kernel has pages of $((bytes / 1024)) KiB, kmem needs 4 KiB" <<<"$said"
done
echo "libkmem.so: runs on pages of 4 KiB, and refuses longer ones"
# Its fast paths are counted, not run. The command is that of the gate, so nothing is built anew.
KMEM_TEST_LIBRARY=$library \
  cargo test --workspace --exclude kmem-bench --test fast_paths -- --ignored
# The loader: modules in C for this machine are relocated, made executable and run, and each fault
# on the way is survived. One test is left out: the emulator shows ranges of text and read-only data
# as one in /proc/self/maps.
not_run "loading memory_is_never_writable_and_executable on $linux" \
  "qemu-user joins ranges of different protection"
KMEM_TEST_CC=aarch64-linux-gnu-gcc timeout "$seconds" cargo test -p kmem-module --target "$linux" \
  --test loading --test small_faults -- --skip memory_is_never_writable_and_executable
echo "$linux: tests pass under qemu-user"
