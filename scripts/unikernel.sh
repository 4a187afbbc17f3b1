#!/usr/bin/env bash
# Boots examples/unikernel in an emulated machine of two CPUs, and compares what its books say
# (allocinfo, buddyinfo, groups) with what the program knows itself. Boots the kernel of
# docs/your-kernel.md on one CPU.
#
#	scripts/unikernel.sh [--seconds N]
#
# Needs qemu-system-x86_64 (Debian: qemu-system-x86) and the Rust target x86_64-unknown-none.
# Without them it records that it did not run (not-run.sh), and succeeds.
set -euo pipefail
cd "$(dirname "$0")/../examples/unikernel"
. ../../scripts/not-run.sh

seconds=60
while [ $# -gt 0 ]; do
  case $1 in
  --seconds) seconds=$2; shift 2 ;;
  *) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done

command -v qemu-system-x86_64 >/dev/null || {
  not_run unikernel.sh "there is no qemu-system-x86_64"
  exit 0
}
rustup target add x86_64-unknown-none >/dev/null 2>&1 || {
  not_run unikernel.sh "rustup has no target x86_64-unknown-none"
  exit 0
}

cargo build --release --target-dir "${CARGO_TARGET_DIR:-../../target/unikernel}"
programs=${CARGO_TARGET_DIR:-../../target/unikernel}/x86_64-unknown-none/release
said=$(mktemp)
trap 'rm -f "$said"' EXIT

# Boots a program on a number of CPUs.
boot() {
  # The program's exit code, times two, plus one.
  local code=0
  timeout "$seconds" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp "$2" -m 256 \
    -display none -monitor none -no-reboot -nodefaults -serial "file:$said" \
    -device isa-debug-exit,iobase=0xf4,iosize=4 \
    -kernel "$programs/$1" </dev/null || code=$?
  cat "$said"
  [ "$code" -eq 1 ] || { echo "$1: exit code $code" >&2; exit 1; }
}

boot kernel 1
grep -q '^Ok(true)' "$said"
boot unikernel 2

awk '
  function wrong(what) { print "unikernel: " what > "/dev/stderr"; bad = 1 }
  $1 == "expect" { bytes[$2] = $3; calls[$2] = $4; expected++ }
  $1 == "expect-group" { group[$2] = $3; groups_expected++ }
  $1 == "check" { checks++ }
  $1 == "check" && $3 != $4 { wrong($2 " is " $3 ", not " $4) }
  $1 == "counted" && $2 != $4 { wrong("counted " $2 " of " $4) }
  $1 == "cpus" { cpus = $2 }
  # A row of allocinfo: bytes, calls, file:line, func:name.
  $4 ~ /^func:/ {
    name = substr($4, 6)
    if ($1 != bytes[name] || $2 != calls[name])
      wrong(name ": the books say " $1 " " $2 ", the program " bytes[name] " " calls[name])
    rows++
  }
  # Node 0, zone N, and a number for each order.
  $1 == "Node" { for (i = 5; i <= NF; i++) free += $i * 2 ^ (i - 5) * 4096 }
  $1 == "used" && $2 + free != $4 { wrong("used " $2 " and free " free " are not " $4) }
  $1 == "group" && $3 == "memory.current" {
    if ($4 != group[$2]) wrong("group " $2 ": " $4 ", not " group[$2])
    current[$2] = $4
    groups++
  }
  $1 == "group" && $3 == "memory.peak" {
    if ($4 < current[$2]) wrong("group " $2 ": its peak " $4 " is below " current[$2])
  }
  # The shrinker of this group makes room each time that the group is at its limit.
  $1 == "group" && $3 == "memory.events" {
    if ($7 != 0 || ($2 == "scoped") != ($5 > 0)) wrong("events of group " $2 ": " $0)
  }
  $1 == "group" && $3 == "memory.stat" { kinds[$2] += $5 }
  $1 == "left" { left = $2 }
  END {
    if (rows != expected || expected < 6) wrong(rows " rows, " expected " expected")
    if (groups != groups_expected || groups < 3) wrong(groups " groups")
    if (checks < 22) wrong(checks " checks")
    for (path in current)
      if (kinds[path] != current[path])
        wrong("group " path ": kinds of " kinds[path] " in " current[path])
    if (cpus != 2) wrong(cpus " CPUs")
    if (left != 0) wrong(left " objects left")
    exit bad
  }
' "$said"
echo "unikernel: $(grep -c '^expect' "$said") figures agree"
