#!/usr/bin/env bash
#
# Compares the chains of callers that libkmem.so records in real programs with those that libgcc and
# libunwind find at the same calls. The programs are built without frame pointers.
# Missing programs are installed from Debian when this runs as root.
#
# usage: compare-callers.sh [OPTIONS] [NAME...]
#
#     --no-install    never install anything; the list of what did not run has the rest
#     --library PATH  the library to test (default: target/release/libkmem.so of this repository)
#     --samples N     chains of each program, at most 200000 (default: 20000)
#     --keep          keep the working directory, for looking into a failure
#     --list          print the names of the programs and exit
#     NAME...         run only these programs
#
# A library in front of libkmem.so samples one call in a number of calls. There it makes an
# allocation of its own, and asks both unwinders for its callers. When all samples are taken, or the
# program ends, the records of kmem are read from outside, and compared. A wrong chain fails.
#
# A chain that ends early must be the beginning of the right one. It may end only in code without a
# table of frames, such as that of a just-in-time compiler. The share of those is printed.
#
# The last line is "N passed, M failed"; the exit code is 0 if nothing failed.

set -euo pipefail

readonly ALL_PROGRAMS=(c++ redis postgres postgres-jit rustc node)
# Chains of a program that are too few.
readonly FEWEST=10000

repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
readonly repository
readonly programs=$repository/crates/kmem-preload/tests/programs/callers

# shellcheck source=scripts/not-run.sh
. "$repository/scripts/not-run.sh"

. "$repository/scripts/options.sh"

no_install=0
keep=0
list=0
library=
samples=20000
read_options 'no-install! keep! list! library samples ...' "$@"
choose "${ALL_PROGRAMS[@]}"
if ((list)); then
	printf '%s\n' "${words[@]}"
	exit 0
fi

find_library

WORK=$(mktemp -d /tmp/compare-callers.XXXXXX)
export WORK
chmod 755 "$WORK"
running=
finish() {
	[[ -z $running ]] || kill -KILL -- "-$running" 2>/dev/null || true
	if ((keep)); then printf 'kept %s\n' "$WORK"; else rm -rf "$WORK"; fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --------------------------------------------------------------------------------------------------
# The programs: needs_NAME prints "command package" pairs, prepare_NAME runs once without the
# library, and run_NAME runs it. The process of that name is sampled, at one call in EVERY.

declare -A PROCESS=([c++]=exercise [redis]=redis-server [postgres]=postgres
	[postgres-jit]=postgres [rustc]=rustc [node]=node)
declare -A EVERY=([c++]=3 [redis]=20 [postgres]=1 [postgres-jit]=60 [rustc]=60 [node]=1)

# Compiles for the program under test, without frame pointers.
compile() {
	"$1" -O2 -fomit-frame-pointer -w -pthread "${@:2}"
}

needs_c++() {
	echo "c++ g++"
}

# Callbacks of glibc, the containers and streams of libstdc++, exceptions in flight, coroutines,
# threads, and a library that is loaded in the place of another.
prepare_c++() {
	local frame
	for frame in 24 72; do
		compile cc -shared -fPIC -DFRAME=$frame "$programs/plugin.c" -o "$WORK/libplugin$frame.so"
	done
	compile c++ -std=c++17 "$programs/exercise.cc" "$WORK/libsampler.so" -ldl -o "$WORK/exercise"
}

run_c++() {
	"$WORK/exercise" "$WORK/libplugin24.so" "$WORK/libplugin72.so"
}

needs_redis() {
	echo "redis-server redis-server"
	echo "redis-cli redis-tools"
	echo "redis-benchmark redis-tools"
}

prepare_redis() { :; }

run_redis() {
	local socket=$WORK/socket client=(redis-cli -s "$WORK/socket") end=$((SECONDS + 20))
	redis-server --port 0 --unixsocket "$socket" --save '' --appendonly no --dir "$WORK" &
	until "${client[@]}" ping >/dev/null 2>&1; do
		((SECONDS < end)) || return 1
		sleep 0.05
	done
	redis-benchmark -s "$socket" -q -c 20 -n 2000 -r 20000 -d 100 \
		-t set,get,incr,lpush,rpush,lpop,sadd,hset,spop,zadd,lrange_100,mset
	"${client[@]}" eval "for i = 1, 5000 do
		redis.call('hset', 'hash' .. (i % 100), 'field' .. i, string.rep('v', i % 300))
		redis.call('zadd', 'sorted', i * 7919 % 10007, 'member' .. i)
		redis.call('append', 'text' .. (i % 50), 'appended ' .. i) end return redis.call('dbsize')" 0
	redis-benchmark -s "$socket" -q -c 20 -n 20000 -r 20000 -d 100 -t set,lpush,hset,zadd
	"${client[@]}" shutdown nosave
	wait
}

postgres_directory() {
	local found
	found=$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | sort -V | tail -n 1) || return 1
	dirname "$found"
}

# PostgreSQL refuses root.
as_postgres() {
	if [[ $(id -u) == 0 ]]; then runuser -u postgres -- "$@"; else "$@"; fi
}

needs_postgres() {
	echo "$(postgres_directory || echo /usr/lib/postgresql)/postgres postgresql"
	echo "runuser util-linux"
}

prepare_postgres() {
	mkdir -p "$WORK/database"
	[[ $(id -u) != 0 ]] || chown postgres "$WORK/database"
	[[ -d $WORK/database/data ]] ||
		as_postgres "$(postgres_directory)/initdb" -D "$WORK/database/data" -A trust --no-sync \
			--locale=C -E UTF8
	# With -j a query ends at a semicolon and an empty line.
	cat >"$WORK/queries" <<'SQL'
CREATE TABLE IF NOT EXISTS entry (a int, b text, c numeric);

INSERT INTO entry SELECT x, repeat('y', x % 50), x * 1.5 FROM generate_series(1, 5000) AS t(x);

CREATE INDEX ON entry (a, b);

SELECT count(*), sum(c), max(b) FROM entry WHERE a % 3 = 1;

SELECT b, count(*), stddev(c) FROM entry GROUP BY b ORDER BY 2 DESC LIMIT 3;

SELECT md5(string_agg(x::text, ',' ORDER BY x % 1009, x)) FROM generate_series(1, 20000) AS t(x);

SELECT length(jsonb_agg(jsonb_build_object('a', x, 'b', repeat('y', x % 50)))::text)
  FROM generate_series(1, 3000) AS t(x);

CREATE OR REPLACE FUNCTION f(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  IF n <= 0 THEN RAISE EXCEPTION 'x'; END IF;
  RETURN f(n - 1) + 1;
EXCEPTION WHEN OTHERS THEN RETURN 0;
END $$;

SELECT f(10);

VACUUM ANALYZE entry;

SELECT one.a, two.b FROM entry one JOIN entry two ON one.a = two.a + 1
  WHERE one.b ~ 'y{3,5}' LIMIT 3;

SQL
}

run_postgres() {
	for _ in {1..20}; do cat "$WORK/queries"; done |
		as_postgres "$(postgres_directory)/postgres" --single -j -D "$WORK/database/data" "$@" postgres
}

needs_postgres-jit() { needs_postgres; }
prepare_postgres-jit() { prepare_postgres; }
# All expressions are compiled by LLVM, to code without frame pointers and without tables of frames.
run_postgres-jit() {
	run_postgres -c jit=on -c jit_above_cost=0 -c jit_inline_above_cost=0 -c jit_optimize_above_cost=0
}

needs_rustc() {
	echo "rustc rustc"
}

# The executable of rustc brings an allocator, whose symbols come before those of any library. In a
# copy it gives them up.
prepare_rustc() {
	local root
	root=$(rustc --print sysroot)
	printf '%s\n' "$root" >"$WORK/sysroot"
	python3 - "$root/bin/rustc" "$WORK/rustc" <<'PYTHON'
import struct, sys
NAMES = b"malloc calloc realloc free memalign posix_memalign aligned_alloc valloc pvalloc " \
    b"malloc_usable_size".split()
DYNSYM = 11
program = bytearray(open(sys.argv[1], "rb").read())
sections, = struct.unpack_from("<Q", program, 40)
size, count = struct.unpack_from("<HH", program, 58)
section = lambda number: struct.unpack_from("<IIQQQQIIQQ", program, sections + number * size)
for number in range(count):
    _, kind, _, _, at, length, link, *_ = section(number)
    if kind != DYNSYM:
        continue
    names = section(link)[4]
    for symbol in range(at, at + length, 24):
        name = names + struct.unpack_from("<I", program, symbol)[0]
        if bytes(program[name:program.index(b"\0", name)]) in NAMES:
            # st_shndx, st_value and st_size: it is not defined here.
            struct.pack_into("<HQQ", program, symbol + 6, 0, 0, 0)
open(sys.argv[2], "wb").write(program)
PYTHON
	chmod 755 "$WORK/rustc"
	cat >"$WORK/source.rs" <<'RUST'
use std::collections::BTreeMap;
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry { Number(u32), Text(String), Bytes { bytes: Vec<u8> } }
fn entries(n: u32) -> BTreeMap<Entry, Vec<String>> {
    let entry = |i| match i % 3 {
        0 => Entry::Number(i),
        1 => Entry::Text(format!("{i}")),
        _ => Entry::Bytes { bytes: vec![1; i as usize] },
    };
    (0..n).map(|i| (entry(i), vec![format!("{:?}", i); 3])).collect()
}
fn main() { println!("{:?}", entries(50)); }
RUST
}

run_rustc() {
	local root
	root=$(<"$WORK/sysroot")
	LD_LIBRARY_PATH=$root/lib "$WORK/rustc" --sysroot "$root" -O "$WORK/source.rs" -o "$WORK/made"
}

needs_node() {
	echo "node nodejs"
}

prepare_node() {
	cat >"$WORK/program.js" <<'JS'
const crypto = require('crypto'), zlib = require('zlib');
const hash = crypto.createHash('sha256');
const map = new Map();
let state = 5;
const next = () => (state = (Math.imul(state, 1103515245) + 12345) >>> 0);
for (let i = 0; i < 3000; i++) {
  const list = Array.from({ length: next() % 40 }, (_, j) => j * i);
  map.set('key' + next() % 5000, { list, text: 'x'.repeat(next() % 500) });
  if (i % 100 === 0) {
    const text = JSON.stringify([...map.entries()].slice(0, 200));
    const packed = zlib.deflateSync(Buffer.from(text));
    if (zlib.inflateSync(packed).toString() !== text) throw new Error('zlib');
    hash.update(packed);
  }
  if (i % 10 === 0) hash.update(Buffer.alloc(next() % 100000, i & 255));
}
console.log(hash.digest('hex'));
JS
}

# Without the certificates of the user, which would take most of the samples.
run_node() {
	env -u NODE_EXTRA_CA_CERTS node "$WORK/program.js"
}

# --------------------------------------------------------------------------------------------------

packages_updated=0
# Installs what is missing of "command package" pairs. Prints what cannot be had.
install_missing() {
	local command package missing=()
	while read -r command package; do
		if [[ $command == */* ]]; then
			[[ -e $command ]] || missing+=("$package")
		else
			command -v "$command" >/dev/null || missing+=("$package")
		fi
	done
	((${#missing[@]})) || return 0
	if ((no_install)) || [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
		printf '%s\n' "${missing[*]}"
		return 1
	fi
	if ((!packages_updated)); then
		apt-get update -qq >"$WORK/apt.log" 2>&1 || true
		packages_updated=1
	fi
	DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
		apt-get install -y -qq --no-install-recommends "${missing[@]}" >>"$WORK/apt.log" 2>&1 || {
		printf '%s\n' "${missing[*]}"
		return 1
	}
}

if ! missing=$(printf '%s\n' "cc gcc" "python3 python3" "/usr/include/libunwind.h libunwind-dev" |
	install_missing); then
	not_run "compare-callers.sh" "these packages cannot be installed: $missing"
	exit 0
fi
(cd "$repository" && cargo build --quiet --release -p kmem-preload --example compare_callers)
compare=${CARGO_TARGET_DIR:-$repository/target}/release/examples/compare_callers
compile cc -shared -fPIC -DLIBUNWIND "$programs/sampler.c" -o "$WORK/libsampler.so" -lunwind
# Where every user may read it.
install -m 755 "$library" "$WORK/libkmem.so"
unset LD_PRELOAD KMEM_CONF MALLOC_CONF GLIBC_TUNABLES
export LC_ALL=C.UTF-8

# Runs a program under the sampler in a session of its own, and compares when the samples are there.
check() {
	local name=$1 pid compared=0
	"prepare_$name" >"$WORK/$name.log" 2>&1 || {
		tail -n 3 "$WORK/$name.log"
		return 1
	}
	mkfifo -m 666 "$WORK/$name.ready"
	: >"$WORK/$name.samples"
	chmod 666 "$WORK/$name.samples"
	# Open for writing, too, so that this does not wait for the program.
	exec 5<>"$WORK/$name.ready"
	export -f "run_$name" run_postgres as_postgres postgres_directory
	LD_PRELOAD="$WORK/libsampler.so $WORK/libkmem.so" KMEM_CONF=depth:32 \
		SAMPLES=$WORK/$name.samples SAMPLE_PROGRAM=${PROCESS[$name]} SAMPLE_EVERY=${EVERY[$name]} \
		SAMPLES_MOST=$samples SAMPLES_READY=$WORK/$name.ready \
		setsid bash -euo pipefail -c "run_$name" >>"$WORK/$name.log" 2>&1 </dev/null &
	running=$!
	if read -r -t 60 -u 5 pid; then
		"$compare" "$WORK/$name.samples" "$pid" "$FEWEST" || compared=1
	else
		printf '%s\n' "the samples were not complete after a minute" "$(tail -n 3 "$WORK/$name.log")"
		compared=1
	fi
	kill -KILL -- "-$running" 2>/dev/null || true
	wait "$running" 2>/dev/null || true
	running=
	exec 5>&-
	return "$compared"
}

passed=0
failed=0
for name in "${words[@]}"; do
	if ! missing=$("needs_$name" | install_missing); then
		not_run "compare-callers.sh $name" "these packages cannot be installed: $missing"
		continue
	fi
	printf '%s: ' "$name"
	if check "$name"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		printf '%s: FAIL\n' "$name"
	fi
done
printf '%s passed, %s failed\n' "$passed" "$failed"
((failed == 0))
