#!/usr/bin/env bash
#
# Builds the fuzz targets of all readers, and runs as many at a time as there are processors.
#
# usage: scripts/fuzz.sh [--seconds N] [--seed N] [TARGET..]
#
# Each target runs for --seconds, by default 30, and all of them without names of targets. New
# inputs that reach new code stay in target/fuzz/corpus/TARGET, so a later run goes on from there.
# The run goes on after a failure, and then ends with 1. It prints where each input is and how to
# run it. Inputs are random, or those of --seed, so that two runs try the same ones.
#
# The harness (crates/kmem-fuzz) holds a reader to a second of processor time and 64 MiB that it
# allocates for one input. The limits of libFuzzer are for what the harness cannot see: -timeout
# for a reader that hangs, -rss_limit_mb for the process with libFuzzer's own tables.

set -euo pipefail
. "$(dirname "$0")/options.sh"

seconds=30
seed=0
read_options 'seconds seed ...' "$@"
targets=("${words[@]}")
cd "$(dirname "$0")/.."
. scripts/not-run.sh

# Where cargo-fuzz is not installed, the project has its own.
export PATH=$PWD/target/tools/bin:$PATH
if ! cargo fuzz --version >/dev/null 2>&1 &&
  ! cargo install --quiet --locked --root target/tools cargo-fuzz; then
  not_run "fuzz targets" "cargo-fuzz cannot be installed"
  exit
fi
if [ ${#targets[@]} -eq 0 ]; then
  mapfile -t targets < <(cargo fuzz list --fuzz-dir fuzz)
fi
for target in "${targets[@]}"; do
  if [ ! -d "fuzz/corpus/$target" ]; then
    echo "fuzz.sh: there is no target $target; the targets are in fuzz/fuzz_targets" >&2
    exit 2
  fi
done

# Without a sanitizer the stable toolchain builds them, and memory is that of the reader.
build=$PWD/target/fuzz
cargo fuzz build --fuzz-dir fuzz --sanitizer none --target-dir "$build"
triple=$(rustc -vV | sed -n 's/^host: //p')

# Fuzzes a target. Prints what came of it by one call, because others run at the same time.
fuzz() {
  local target=$1 corpus=$build/corpus/$1 found=$build/found/$1 log=$build/$1.log
  local program=$build/$triple/release/$1
  mkdir -p "$corpus" "$found"
  if "$program" -max_total_time="$seconds" -seed="$seed" -timeout=10 -rss_limit_mb=512 \
    -max_len=131072 -artifact_prefix="$found/" "$corpus" "fuzz/corpus/$target" >"$log" 2>&1; then
    printf '%-14s %s\n' "$target" "$(tail -n 1 "$log")"
    return
  fi
  local causes='panicked at\|ERROR: libFuzzer\|memory allocation of' input
  input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  printf '%-14s failed, see %s:\n%s\nthe input is %s; to run it again:\n  %s %s\n' \
    "$target" "$log" "$(grep -A 3 "$causes" "$log" | head -n 12)" \
    "${input:-not known}" "$program" "$input"
  return 1
}

export -f fuzz
export build triple seconds seed
if ! printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'fuzz "$1"' fuzz; then
  echo "fuzz.sh: a target failed" >&2
  exit 1
fi
