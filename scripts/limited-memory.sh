#!/usr/bin/env bash
# Programs under libkmem.so where memory is limited by the system: in containers of 256 and 64 MiB,
# and with strict overcommit. Needs root; parts that the machine does not offer are recorded as not
# run (not-run.sh).
#
#   scripts/limited-memory.sh [--library PATH] [--system]
#
# --system also changes vm.overcommit_memory of the whole machine for a moment.
set -euo pipefail
. "$(dirname "$0")/not-run.sh"
library=target/release/libkmem.so
system=0
while [ $# -gt 0 ]; do
  case $1 in
  --library) library=$2; shift 2 ;;
  --system) system=1; shift ;;
  *) echo "usage: $0 [--library PATH] [--system]" >&2; exit 2 ;;
  esac
done
library=$(readlink -f "$library")
[ -f "$library" ] || { echo "$library is not there: cargo build --release" >&2; exit 2; }

# Fills and empties some 100 MiB six times: what is not given back in time would exceed the limit.
work='
for i in range(6):
    d = {i: str(i) for i in range(700000)}
    del d
print("done")'

in_container() {
  local group=$1 limit=$2 file=$3
  mkdir -p "$group"
  echo $((256 << 20)) >"$group/$limit"
  for turn in 1 2 3; do
    result=$(sh -c "echo \$\$ > $group/cgroup.procs &&
      LD_PRELOAD=$library exec python3 -c '$work'") ||
      { echo "256 MiB: turn $turn failed" >&2; rmdir "$group"; return 1; }
    [ "$result" = done ] || { echo "256 MiB: turn $turn said: $result" >&2; return 1; }
  done
  echo "256 MiB container: ok, peak $(($(cat "$group/$file") >> 20)) MiB"
  rmdir "$group"
}

# A program that lives under the C library's malloc, with 40 MiB of blocks at most. What the heap
# keeps must follow the limit.
in_small_container() {
  local group=$1 limit=$2 file=$3 program
  program=$(mktemp -d)
  trap 'rm -rf "$program"' RETURN
  cc -O1 -o "$program/container" crates/kmem-preload/tests/programs/container.c
  mkdir -p "$group"
  echo $((64 << 20)) >"$group/$limit"
  sh -c "echo \$\$ > $group/cgroup.procs &&
    LD_PRELOAD=$library exec $program/container 40" ||
    { echo "64 MiB: the program failed" >&2; rmdir "$group"; return 1; }
  echo "64 MiB container: ok, peak $(($(cat "$group/$file") >> 20)) MiB"
  rmdir "$group"
}

if [ -w /sys/fs/cgroup/memory ] && [ -f /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
  in_container /sys/fs/cgroup/memory/kmem-test memory.limit_in_bytes memory.max_usage_in_bytes
  in_small_container /sys/fs/cgroup/memory/kmem-small memory.limit_in_bytes \
    memory.max_usage_in_bytes
elif grep -qs memory /sys/fs/cgroup/cgroup.subtree_control && [ -w /sys/fs/cgroup ]; then
  in_container /sys/fs/cgroup/kmem-test memory.max memory.peak
  in_small_container /sys/fs/cgroup/kmem-small memory.max memory.peak
else
  not_run "limited-memory.sh, the containers" "no memory cgroup may be written"
fi

if [ $system -eq 1 ]; then
  before=$(cat /proc/sys/vm/overcommit_memory) ratio=$(cat /proc/sys/vm/overcommit_ratio)
  restore() {
    echo "$before" >/proc/sys/vm/overcommit_memory
    echo "$ratio" >/proc/sys/vm/overcommit_ratio
  }
  trap restore EXIT
  echo 200 >/proc/sys/vm/overcommit_ratio
  echo 2 >/proc/sys/vm/overcommit_memory
  committed='
def committed():
    return next(int(l.split()[1]) for l in open("/proc/meminfo") if l.startswith("Committed_AS"))
d = {i: str(i) for i in range(300000)}
print(committed())'
  with=$(LD_PRELOAD=$library python3 -c "$committed")
  without=$(python3 -c "$committed")
  restore
  # The charge is for what is used, not for the address space that is reserved.
  [ $((with - without)) -lt $((256 << 10)) ] || {
    echo "strict overcommit: charged $with kB, $without without" >&2
    exit 1
  }
  echo "strict overcommit: ok, $((with - without)) kB charged beyond the C library's malloc"
else
  not_run "limited-memory.sh, strict overcommit" "--system was not given"
fi
