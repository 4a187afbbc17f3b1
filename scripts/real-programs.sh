#!/usr/bin/env bash
#
# Runs real, unmodified programs without and with libkmem.so preloaded, and compares what they print
# and how they end. A third run is with KMEM_CONF=depth:8, which finds the callers of each call.
# Missing programs are installed from Debian when this runs as root.
#
# usage: real-programs.sh [--quick] [--no-install] [--library PATH] [--keep] [--list] [NAME...]
#
#     --quick         smaller sizes, done within some minutes
#     --no-install    never install anything; a missing program counts as failed
#     --library PATH  the library to test (default: target/release/libkmem.so of this repository)
#     --keep          keep the working directory, for looking into a failure
#     --list          print the names of the programs and exit
#     NAME...         run only these programs
#
# The last four are sandboxes. Where they cannot run, the list of tests that did not run has them
# (not-run.sh).
#
# A program passes when it exits with 0 and prints the same each time. The library must write
# nothing to stderr, and every process that the program starts must have it mapped. In the third run
# processes outside of sandboxes leave black boxes. The rows of these books must add up. The last
# line is "N passed, M failed"; the exit code is 0 if nothing failed.

set -euo pipefail

readonly ALL_PROGRAMS=(python3 sqlite3 redis postgresql node perl git gcc g++ cargo c++-threads
	sshd bubblewrap chromium firefox)
# Programs that need rights or packages that a machine may not have. Without them they do not run.
readonly OPTIONAL_PROGRAMS=(sshd bubblewrap chromium firefox)
# Programs that do less in the run with depth:8. It is compared with another one without the
# library.
readonly SMALLER_PROGRAMS=(python3 redis gcc sshd)

script=$(readlink -f "${BASH_SOURCE[0]}")
readonly script
repository=$(dirname "$(dirname "$script")")
readonly repository

# shellcheck source=scripts/not-run.sh
. "$(dirname "$script")/not-run.sh"

say() {
	printf '%s\n' "$*"
}

die() {
	printf 'real-programs: %s\n' "$*" >&2
	exit 2
}

# --------------------------------------------------------------------------------------------------
# Helpers of the programs. WORK is the common directory, HERE the one of this run; PRELOAD is the
# library or empty; CONF is its configuration or empty; MODE is without, with, small or deep;
# EVIDENCE is where the dynamic linker notes, per process, what it mapped.

# Runs a command as the program under test. The linker's notes are asked for in both modes, so that
# times compare.
loaded() {
	env LD_PRELOAD="$PRELOAD" ${CONF:+"KMEM_CONF=$CONF"} LD_DEBUG=files \
		LD_DEBUG_OUTPUT="$EVIDENCE/process" "$@"
}

# Runs a command as the program under test, as the owner of the database when the script runs as
# root: PostgreSQL refuses root.
loaded_as_postgres() {
	if [[ $(id -u) == 0 ]]; then
		runuser -u postgres -- env LD_PRELOAD="$PRELOAD" ${CONF:+"KMEM_CONF=$CONF"} \
			LD_DEBUG=files LD_DEBUG_OUTPUT="$EVIDENCE/process" "$@"
	else
		loaded "$@"
	fi
}

# Waits until a command succeeds; gives up after a number of seconds.
wait_until() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		((SECONDS < end)) || return 1
		sleep 0.05
	done
}

# Notes a server, so that it is stopped whatever happens.
note_server() {
	printf '%s\n' "$1" >>"$WORK/servers"
}

# Fails unless a server has the library mapped exactly when it should.
assert_mapped() {
	local count
	count=$(grep -c '/libkmem\.so' "/proc/$1/maps" || true)
	if [[ -n $PRELOAD && $count == 0 ]]; then
		say "process $1 does not have the library mapped"
		return 1
	elif [[ -z $PRELOAD && $count != 0 ]]; then
		say "process $1 has the library mapped"
		return 1
	fi
}

# The size of a quick run and of a long one, and of one with little to do if that differs.
sized() {
	if [[ $# == 3 && ($MODE == small || $MODE == deep) ]]; then
		say "$3"
	elif [[ $QUICK == 1 ]]; then
		say "$1"
	else
		say "$2"
	fi
}

# --------------------------------------------------------------------------------------------------
# The programs: needs_NAME prints "command package" pairs, prepare_NAME (optional) runs once and
# unmeasured, run_NAME is measured and compared, clean_NAME (optional) runs after each run.

needs_python3() {
	say "/usr/bin/python3 python3"
	local version
	version=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' \
		2>/dev/null || say 3.11)
	say "/usr/lib/python$version/test/test_json libpython$version-testsuite"
}

run_python3() {
	local tests=(test_json test_dict test_list test_deque test_gc test_weakref test_generators
		test_exceptions test_struct test_zlib test_unicode)
	if [[ $MODE == small || $MODE == deep ]]; then
		tests=(test_json test_generators test_exceptions test_struct)
	fi
	[[ $QUICK == 1 ]] || tests+=(test_re test_set test_tuple test_heapq test_sort test_pickle
		test_string test_threading test_thread test_queue test_ctypes test_itertools
		test_long test_decimal test_io test_mmap test_buffer test_bytes test_statistics
		test_functools test_collections test_ast)
	(
		cd "$HERE"
		# Objects, and so lines of Python, instead of the arenas of Python's own allocator.
		export PYTHONMALLOC=malloc
		loaded /usr/bin/python3 -m test --randseed 1 --timeout 300 "${tests[@]}" >log 2>&1
	) || {
		grep -E '^test .* (failed|crashed)|^(FAIL|ERROR):|^Fatal' "$HERE/log" || tail -n 5 "$HERE/log"
		return 1
	}
	# Times and loads differ from run to run.
	sed -E -e 's/^[0-9:]+ load avg: [0-9.]+ //' -e '/^(Total duration|Using random seed|== )/d' \
		-e 's/( -- test_[a-z0-9_]+)? passed in .*//' -e 's/[0-9.]+ (sec|min|ms)//g' "$HERE/log" |
		grep -E '^(\[|All|Tests result|[0-9]+ tests)' | sed -E 's/\([0-9a-z .]+\)//'
}

needs_sqlite3() {
	say "sqlite3 sqlite3"
}

run_sqlite3() {
	local rows
	rows=$(sized 400000 3600000)
	loaded sqlite3 "$HERE/database" <<SQL
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -200000;
CREATE TABLE entry (id INTEGER PRIMARY KEY, bucket INTEGER, name TEXT, body TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $rows)
INSERT INTO entry SELECT i, (i * 7919) % 1000, printf('name %08x', (i * 2654435761) % 4294967296),
	printf('%.*c %d', 120 + i % 160, 'x', i) FROM n;
CREATE INDEX by_bucket ON entry (bucket, name);
SELECT count(*), sum(id), sum(length(body)) FROM entry;
SELECT bucket, count(*), min(name), max(length(body)) FROM entry
  GROUP BY bucket ORDER BY 2 DESC, 1 LIMIT 20;
SELECT a.id, b.id FROM entry a JOIN entry b ON a.bucket = b.bucket AND a.name < b.name
  WHERE a.id < 40 AND b.id < 4000 ORDER BY 1, 2 LIMIT 30;
SELECT name, length(body) FROM entry ORDER BY length(body) DESC, name LIMIT 20;
SELECT count(DISTINCT substr(name, 6, 4)) FROM entry;
SELECT length(group_concat(name)) FROM entry WHERE bucket < 100;
UPDATE entry SET body = body || name WHERE bucket % 10 = 3;
DELETE FROM entry WHERE bucket % 10 = 4;
SELECT count(*), sum(length(body)) FROM entry;
PRAGMA wal_checkpoint(TRUNCATE);
PRAGMA integrity_check;
SQL
	if [[ $QUICK != 1 ]]; then
		local megabytes=$(($(stat -c %s "$HERE/database") >> 20))
		((megabytes >= 950)) || {
			say "the database has only $megabytes MiB"
			return 1
		}
	fi
	rm -f "$HERE/database"*
}

needs_redis() {
	say "redis-server redis-server"
	say "redis-cli redis-tools"
	say "redis-benchmark redis-tools"
}

run_redis() {
	local socket="$HERE/socket" requests keys server client
	requests=$(sized 40000 300000 10000)
	keys=$(sized 50000 500000 20000)
	loaded redis-server --port 0 --unixsocket "$socket" --save '' --appendonly no --dir "$HERE" \
		--enable-debug-command yes --daemonize no >"$HERE/server.log" 2>&1 &
	client=(redis-cli -s "$socket")
	wait_until 20 "${client[@]}" ping
	server=$("${client[@]}" info server | tr -d '\r' | sed -n 's/^process_id://p')
	note_server "$server"
	assert_mapped "$server"
	loaded redis-benchmark -s "$socket" -q -c 20 -n "$requests" -r 20000 -d 100 \
		-t set,get,incr,lpush,rpush,lpop,sadd,hset,spop,zadd,lrange_100,mset >"$HERE/benchmark.log" 2>&1
	"${client[@]}" flushall
	"${client[@]}" debug populate "$keys" key 200
	"${client[@]}" eval "for i = 1, 20000 do
		redis.call('hset', 'hash' .. (i % 100), 'field' .. i, string.rep('v', i % 300))
		redis.call('zadd', 'sorted', i * 7919 % 10007, 'member' .. i)
		redis.call('append', 'text' .. (i % 50), 'appended ' .. i) end return redis.call('dbsize')" 0
	"${client[@]}" debug digest
	"${client[@]}" save
	"${client[@]}" debug reload
	"${client[@]}" debug digest
	"${client[@]}" bgsave >/dev/null
	wait_until 60 bash -c "redis-cli -s '$socket' info persistence |
		grep -q 'rdb_bgsave_in_progress:0'"
	"${client[@]}" info persistence | grep -o 'rdb_last_bgsave_status:[a-z]*'
	assert_mapped "$server"
	"${client[@]}" shutdown nosave
	wait
	rm -f "$HERE"/*.rdb
}

postgres_directory() {
	local found
	found=$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | sort -V | tail -n 1) || return 1
	dirname "$found"
}

needs_postgresql() {
	say "$(postgres_directory || say /usr/lib/postgresql)/postgres postgresql"
	say "runuser util-linux"
}

run_postgresql() {
	local bin data="$HERE/data" server scale transactions psql
	bin=$(postgres_directory)
	scale=$(sized 2 20)
	transactions=$(sized 400 5000)
	# The password file of initdb and the sockets live here, too.
	[[ $(id -u) != 0 ]] || chown postgres "$HERE"
	loaded_as_postgres "$bin/initdb" -D "$data" -U tester -A trust --no-sync --locale=C -E UTF8 \
		>"$HERE/initdb.log" 2>&1
	# Not by pg_ctl, which would take the server out of our process group.
	loaded_as_postgres "$bin/postgres" -D "$data" -k "$HERE" -c listen_addresses= -c fsync=off \
		-c shared_buffers=128MB -c max_parallel_workers_per_gather=2 \
		-c jit=on -c jit_above_cost=10000 >"$HERE/server.log" 2>&1 &
	wait_until 30 "$bin/pg_isready" -q -h "$HERE" -U tester
	server=$(head -n 1 "$data/postmaster.pid")
	note_server "$server"
	assert_mapped "$server"
	psql=("$bin/psql" -h "$HERE" -U tester -d postgres -X -A -t -q -v ON_ERROR_STOP=1)
	loaded "$bin/pgbench" -h "$HERE" -U tester -i -q -s "$scale" postgres >"$HERE/fill.log" 2>&1
	loaded "$bin/pgbench" -h "$HERE" -U tester -c 8 -j 2 -t "$transactions" --random-seed=1 \
		postgres >"$HERE/bench.log" 2>&1
	grep -E 'number of transactions actually processed' "$HERE/bench.log"
	loaded "${psql[@]}" <<SQL
SELECT sum(abalance) = (SELECT sum(bbalance) FROM pgbench_branches),
	sum(abalance) = (SELECT sum(tbalance) FROM pgbench_tellers),
	count(*), sum(abalance) FROM pgbench_accounts;
SELECT count(*) FROM pgbench_history;
SELECT bid, count(*), md5(string_agg(filler, '' ORDER BY aid)) FROM pgbench_accounts
  GROUP BY bid ORDER BY bid LIMIT 3;
SELECT md5(string_agg(x::text, ',' ORDER BY x % 1009, x)) FROM generate_series(1, 200000) AS t(x);
SELECT length(jsonb_agg(jsonb_build_object('a', x, 'b', repeat('y', x % 50)))::text)
  FROM generate_series(1, 30000) AS t(x);
SQL
	assert_mapped "$server"
	kill -INT "$server"
	wait
	rm -rf "$data"
}

needs_node() {
	say "node nodejs"
}

prepare_node() {
	cat >"$WORK/program.js" <<'JS'
const crypto = require('crypto'), zlib = require('zlib');
const { Worker, isMainThread, workerData, parentPort } = require('worker_threads');

function work(seed, rounds) {
  const hash = crypto.createHash('sha256');
  const map = new Map();
  let state = seed;
  const next = () => (state = (Math.imul(state, 1103515245) + 12345) >>> 0);
  for (let i = 0; i < rounds; i++) {
    const key = 'key' + next() % 5000;
    const list = Array.from({ length: next() % 40 }, (_, j) => j * i);
    map.set(key, { list, text: 'x'.repeat(next() % 500) });
    if (i % 100 === 0) {
      const text = JSON.stringify([...map.entries()].slice(0, 200));
      const packed = zlib.deflateSync(Buffer.from(text));
      if (zlib.inflateSync(packed).toString() !== text) throw new Error('zlib');
      hash.update(packed);
    }
    if (i % 10 === 0) hash.update(Buffer.alloc(next() % 100000, i & 255));
  }
  return hash.digest('hex');
}

if (isMainThread) {
  const rounds = Number(process.argv[2]);
  console.log('main', work(1, rounds));
  const workers = [2, 3, 4, 5].map(seed => new Promise((resolve, reject) => {
    const worker = new Worker(__filename, { workerData: { seed, rounds } });
    worker.once('message', resolve);
    worker.once('error', reject);
  }));
  Promise.all(workers).then(results => results.forEach(result => console.log('worker', result)));
} else {
  parentPort.postMessage(work(workerData.seed, workerData.rounds));
}
JS
}

run_node() {
	loaded node "$WORK/program.js" "$(sized 4000 40000)"
}

needs_perl() {
	say "perl perl"
}

prepare_perl() {
	cat >"$WORK/program.pl" <<'PERL'
use strict;
use warnings;
use Digest::MD5 qw(md5_hex);

my $rounds = shift;
my (%table, @list);
my $state = 1;
sub draw { $state = ($state * 1103515245 + 12345) % 2147483648; return $state }
for my $i (1 .. $rounds) {
    my $key = 'key ' . draw() % 20000;
    $table{$key}{count}++;
    push @{ $table{$key}{list} }, $i, 'text' x (draw() % 20);
    delete $table{ 'key ' . draw() % 20000 };
    if ($i % 1000 == 0) {
        my $text = join ',', map { "$_=$table{$_}{count}" } sort keys %table;
        $text =~ s/(\d+)=(\d+)/$2:$1/g;
        push @list, md5_hex($text);
        my $pid = open my $child, '-|';
        defined $pid or die "fork: $!";
        if (!$pid) { print scalar(keys %table); exit 0 }
        push @list, <$child>;
        close $child or die 'child';
    }
}
print "$_\n" for md5_hex("@list"), scalar(@list), scalar(keys %table);
print "caught: $@" unless eval { die "an error\n"; 1 };
PERL
}

run_perl() {
	loaded perl "$WORK/program.pl" "$(sized 60000 600000)"
}

needs_git() {
	say "git git"
}

prepare_git() {
	local source="$WORK/source" commits
	commits=$(sized 60 400)
	git init -q -b main "$source"
	git -C "$source" config user.name tester
	git -C "$source" config user.email tester@example.com
	git -C "$source" config gc.auto 0
	for ((i = 1; i <= commits; i++)); do
		mkdir -p "$source/directory$((i % 20))"
		for j in 1 2 3 4 5; do
			seq $((i * j)) $((i * j + 2000)) >"$source/directory$((i % 20))/file$((i * j % 150))"
		done
		git -C "$source" add -A
		GIT_AUTHOR_DATE="$((1700000000 + i)) +0000" GIT_COMMITTER_DATE="$((1700000000 + i)) +0000" \
			git -C "$source" commit -q -m "commit $i"
	done
}

run_git() {
	local clone="$HERE/clone"
	loaded git clone -q "file://$WORK/source" "$clone"
	loaded git -C "$clone" fsck --full --no-progress
	loaded git -C "$clone" log --stat --format='%H %s' | md5sum
	loaded git -C "$clone" log -p --format='%H %s' | md5sum
	loaded git -C "$clone" repack -q -a -d -f --depth=50 --window=50
	loaded git -C "$clone" fsck --full --no-progress
	loaded git -C "$clone" grep -c '^1234$' | sort | md5sum
	loaded git -C "$clone" blame directory1/file1 | md5sum
	loaded git -C "$clone" status --short
	rm -rf "$clone"
}

needs_gcc() {
	say "gcc gcc"
	say "as binutils"
}

prepare_gcc() {
	local functions
	functions=$(sized 300 3000)
	{
		say '#include <stdio.h>'
		say '#include <stdlib.h>'
		say '#include <string.h>'
		for ((i = 0; i < functions; i++)); do
			say "struct s$i { int a[$((i % 17 + 1))]; double d; char *name; };"
			say "static int f$i(struct s$i *s, int n) { int sum = $i;"
			say "  for (int i = 0; i < n; i++) { sum += s->a[i % $((i % 17 + 1))] * i;"
			say "  if (sum % 3 == 0) s->d *= 1.5;"
			say "  else if (sum & 1) { s->name = strdup(\"name $i\"); free(s->name); }"
			say "  switch (sum % 5) { case 0: sum ^= $i; break; case 1: sum += n; break;"
			say "  case 2: sum -= i; break; default: sum *= 3; } } return sum; }"
			say "int g$i(int n) { struct s$i s; memset(&s, 0, sizeof s); s.d = n;"
			say "  return f$i(&s, n) + (int)s.d; }"
		done
		say 'int main(void) { unsigned sum = 0;'
		for ((i = 0; i < functions; i++)); do say "sum += (unsigned)g$i($((i % 50)));"; done
		say 'printf("%u\n", sum); return 0; }'
	} >"$WORK/program.c"
}

run_gcc() {
	if [[ $MODE == small || $MODE == deep ]]; then
		loaded gcc -O1 -c "$WORK/program.c" -o "$HERE/program.o"
		md5sum <"$HERE/program.o"
		return
	fi
	loaded gcc -O2 -g -Wall -c "$WORK/program.c" -o "$HERE/program.o"
	loaded gcc -O2 -flto=auto -c "$WORK/program.c" -o "$HERE/lto.o"
	loaded gcc "$HERE/program.o" -o "$HERE/program"
	loaded gcc -O2 -flto=2 "$HERE/lto.o" -o "$HERE/lto"
	loaded "$HERE/program"
	loaded "$HERE/lto"
	# The debug information holds the directory; what else the compiler made must be the same.
	objcopy --strip-debug "$HERE/program.o" "$HERE/stripped.o"
	md5sum <"$HERE/stripped.o"
}

needs_g++() {
	say "g++ g++"
}

prepare_g++() {
	cat >"$WORK/program.cc" <<'CXX'
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <int N> struct Tower {
	std::map<int, Tower<N - 1>> floors;
	std::variant<int, std::string, std::vector<Tower<N - 1>>> extra;
	long sum() const
	{
		return std::accumulate(floors.begin(), floors.end(), long(N),
				       [](long s, const auto &f) { return s + f.second.sum(); });
	}
};
template <> struct Tower<0> {
	long sum() const { return 1; }
};

template <size_t... I> long apply_all(std::index_sequence<I...>)
{
	auto tuple = std::make_tuple(std::function<long(long)>([](long x) { return x + long(I); })...);
	return (std::get<I>(tuple)(long(I)) + ...);
}

int main()
{
	Tower<12> tower;
	tower.floors[1].floors[2].floors[3];
	std::cout << tower.sum() << ' ' << apply_all(std::make_index_sequence<120>()) << '\n';
	std::regex pattern("([a-z]+)([0-9]+)(_[xyz]*)?");
	std::string text;
	for (int i = 0; i < 2000; i++)
		text += "name" + std::to_string(i) + "_xyz ";
	std::sregex_iterator found(text.begin(), text.end(), pattern);
	std::cout << std::distance(found, std::sregex_iterator()) << '\n';
	std::unordered_map<std::string, std::shared_ptr<std::set<int>>> table;
	for (int i = 0; i < 100000; i++) {
		auto &entry = table["k" + std::to_string(i % 777)];
		if (!entry)
			entry = std::make_shared<std::set<int>>();
		entry->insert(i);
	}
	std::cout << table.size() << ' ' << table["k5"]->size() << '\n';
}
CXX
}

run_g++() {
	local rounds
	rounds=$(sized 1 4)
	for ((i = 0; i < rounds; i++)); do
		loaded g++ -std=c++17 -O2 -c "$WORK/program.cc" -o "$HERE/program.o"
		md5sum <"$HERE/program.o"
	done
	loaded g++ "$HERE/program.o" -o "$HERE/program"
	loaded "$HERE/program"
}

needs_cargo() {
	say "cargo cargo"
	say "cc gcc"
}

prepare_cargo() {
	local crate="$WORK/crate" modules
	modules=$(sized 50 150)
	mkdir -p "$crate/src" "$crate/part/src"
	cat >"$crate/Cargo.toml" <<'TOML'
[package]
name = "sample"
version = "0.1.0"
edition = "2021"

[dependencies]
part = { path = "part" }

[workspace]
members = ["part"]
TOML
	printf '[package]\nname = "part"\nversion = "0.1.0"\nedition = "2021"\n' >"$crate/part/Cargo.toml"
	{
		say '//! Many small modules.'
		for ((i = 0; i < modules; i++)); do
			say "pub mod m$i { use std::collections::*;"
			say "#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]"
			say "pub enum E { A(u32), B(String), C { x: Vec<u8> } }"
			say "pub fn f(n: u32) -> BTreeMap<E, Vec<String>> { (0..n).map(|i| ("
			say "if i % 3 == 0 { E::A(i) } else if i % 3 == 1 { E::B(format!(\"{i}\")) }"
			say "else { E::C { x: vec![$i; i as usize] } }, vec![format!(\"{:?}\", i); 3])).collect() } }"
		done
	} >"$crate/part/src/lib.rs"
	{
		say 'fn main() { let mut total = 0usize;'
		for ((i = 0; i < modules; i++)); do
			say "total += format!(\"{:?}\", part::m$i::f($((i % 40)))).len();"
		done
		say 'println!("{total}"); }'
	} >"$crate/src/main.rs"
}

run_cargo() {
	cp -r "$WORK/crate" "$HERE/crate"
	(
		cd "$HERE/crate"
		unset RUSTFLAGS RUSTC_WRAPPER CARGO_BUILD_TARGET
		loaded cargo build --offline --quiet --target-dir "$HERE/target"
		loaded "$HERE/target/debug/sample"
		[[ $QUICK == 1 ]] || {
			loaded cargo build --offline --quiet --target-dir "$HERE/target" --release
			loaded "$HERE/target/release/sample"
		}
	)
	rm -rf "$HERE/crate" "$HERE/target"
}

needs_c++-threads() {
	say "g++ g++"
}

prepare_c++-threads() {
	g++ -std=c++17 -O2 -pthread "$repository/crates/kmem-preload/tests/programs/containers.cc" \
		-o "$WORK/containers"
}

run_c++-threads() {
	local rounds
	rounds=$(sized 10 60)
	for ((i = 0; i < rounds; i++)); do
		loaded "$WORK/containers"
	done
}

# A server that gives each client, until it has logged in, to a process in a sandbox.
needs_sshd() {
	say "/usr/sbin/sshd openssh-server"
	say "ssh openssh-client"
	say "root root"
}

prepare_sshd() {
	mkdir -p /run/sshd "$WORK/ssh"
	ssh-keygen -q -t ed25519 -N '' -f "$WORK/ssh/host"
	ssh-keygen -q -t ed25519 -N '' -f "$WORK/ssh/user"
	cat >"$WORK/ssh/config" <<CONFIG
ListenAddress 127.0.0.1
HostKey $WORK/ssh/host
AuthorizedKeysFile $WORK/ssh/user.pub
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
StrictModes no
CONFIG
}

run_sshd() {
	local port=$((20000 + $$ % 20000)) client count
	count=$(sized 20 200 10)
	loaded /usr/sbin/sshd -t -f "$WORK/ssh/config"
	# In the sandbox no file may grow, so the server cannot leave the linker's notes.
	env LD_PRELOAD="$PRELOAD" ${CONF:+"KMEM_CONF=$CONF"} \
		/usr/sbin/sshd -f "$WORK/ssh/config" -p "$port" \
		-o PidFile="$HERE/pid" -E "$HERE/server.log"
	wait_until 30 test -s "$HERE/pid"
	note_server "$(<"$HERE/pid")"
	assert_mapped "$(<"$HERE/pid")"
	client=(ssh -q -F none -i "$WORK/ssh/user" -p "$port" -o BatchMode=yes -o ConnectTimeout=30
		-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null 127.0.0.1)
	for ((i = 0; i < count; i++)); do
		"${client[@]}" "echo login $i" </dev/null
	done
	kill "$(<"$HERE/pid")"
}

# A program inside a filter like that of Flatpak, which refuses calls that change namespaces, keys
# or the placement of memory.
needs_bubblewrap() {
	say "bwrap bubblewrap"
	say "perl perl"
	say "root root"
}

prepare_bubblewrap() {
	prepare_perl
	# Load the call's number; for each refused one: if it is this, return EPERM; else allow.
	perl -e 'print pack "SCCL", 0x20, 0, 0, 0;
		print pack("SCCL", 0x15, 0, 1, $_), pack("SCCL", 0x06, 0, 0, 0x50001) for @ARGV;
		print pack "SCCL", 0x06, 0, 0, 0x7fff0000' \
		101 103 134 135 155 163 165 179 237 238 239 248 249 250 256 272 279 298 308 >"$WORK/filter"
}

run_bubblewrap() {
	loaded bwrap --ro-bind / / --dev /dev --bind "$HERE" "$HERE" --bind "$EVIDENCE" "$EVIDENCE" \
		--unshare-ipc --seccomp 9 perl "$WORK/program.pl" "$(sized 20000 200000)" 9<"$WORK/filter"
}

# Runs a browser as a user without rights: its sandbox refuses root.
loaded_as_nobody() {
	chmod 777 "$HERE"
	runuser -u nobody -- env HOME="$HERE" LD_PRELOAD="$PRELOAD" ${CONF:+"KMEM_CONF=$CONF"} \
		LD_DEBUG=files LD_DEBUG_OUTPUT="$EVIDENCE/process" "$@"
}

prepare_page() {
	cat >"$WORK/page.html" <<'HTML'
<html><body><p id="result"></p><script>
const all = [];
for (let i = 0; i < 300000; i++) all.push({ i, text: 'x' + i });
const sum = all.reduce((sum, one) => sum + one.i, 0);
document.getElementById('result').textContent = `sum ${sum} of ${all.length}`;
</script></body></html>
HTML
}

needs_chromium() {
	say "chromium chromium"
	say "root root"
}

prepare_chromium() {
	prepare_page
}

run_chromium() {
	loaded_as_nobody chromium --headless --disable-gpu --no-first-run \
		--user-data-dir="$HERE/profile" --dump-dom "file://$WORK/page.html" 2>"$HERE/chromium.log" |
		grep -o 'sum [0-9]* of [0-9]*'
}

needs_firefox() {
	say "firefox-esr firefox-esr"
	say "root root"
}

prepare_firefox() {
	prepare_page
}

run_firefox() {
	mkdir "$HERE/profile"
	chmod 777 "$HERE/profile"
	loaded_as_nobody firefox-esr --headless --no-remote --profile "$HERE/profile" \
		--screenshot "$HERE/page.png" "file://$WORK/page.html" >"$HERE/firefox.log" 2>&1
	head -c 8 "$HERE/page.png" | md5sum
	say "$(find "$HERE/profile" -name '*.dmp' | wc -l) crashes"
}

# --------------------------------------------------------------------------------------------------
# One measured run, in a process group of its own: --one NAME, with everything else in the
# environment.

stop_servers() {
	local pid
	[[ -f $WORK/servers ]] || return 0
	while read -r pid; do
		kill -KILL "$pid" 2>/dev/null || true
	done <"$WORK/servers"
	rm -f "$WORK/servers"
}

if [[ ${1:-} == --one ]]; then
	"run_$2"
	exit
fi

# --------------------------------------------------------------------------------------------------

QUICK=0
MODE=without
install=1
keep=0
library=
names=()
while (($#)); do
	case $1 in
	--quick) QUICK=1 ;;
	--no-install) install=0 ;;
	--keep) keep=1 ;;
	--list)
		printf '%s\n' "${ALL_PROGRAMS[@]}"
		exit 0
		;;
	--library)
		(($# > 1)) || die "--library needs a path"
		library=$2
		shift
		;;
	-h | --help)
		sed -n '3,23s/^# \{0,1\}//p' "$script"
		exit 0
		;;
	-*) die "unknown option $1" ;;
	*)
		[[ " ${ALL_PROGRAMS[*]} " == *" $1 "* ]] || die "unknown program $1; --list shows all"
		names+=("$1")
		;;
	esac
	shift
done
((${#names[@]})) || names=("${ALL_PROGRAMS[@]}")

if [[ -z $library ]]; then
	for candidate in "${CARGO_TARGET_DIR:-$repository/target}/release"{,/deps}/libkmem.so; do
		if [[ -f $candidate ]]; then
			library=$candidate
			break
		fi
	done
fi
[[ -n $library && -f $library ]] ||
	die "no libkmem.so: build it with 'cargo build --release', or give --library"
# The command that reads black boxes.
kmem=$(dirname "$(readlink -f "$library")")/kmem
[[ -x $kmem ]] || die "no $kmem: build it with 'cargo build --release'"

WORK=$(mktemp -d /tmp/real-programs.XXXXXX)
export WORK QUICK
chmod 755 "$WORK"

finish() {
	stop_servers
	if ((keep)); then
		say "kept $WORK"
	else
		rm -rf "$WORK"
	fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Where every user may read it, and by this name wherever it came from.
install -m 755 "$library" "$WORK/libkmem.so"
# The measured programs must see nothing of the caller's own wishes.
unset LD_PRELOAD LD_DEBUG LD_DEBUG_OUTPUT KMEM_CONF GLIBC_TUNABLES MALLOC_CONF
export LC_ALL=C.UTF-8

packages_updated=0
install_missing() {
	local name=$1 command package missing=()
	while read -r command package; do
		if [[ $command == root ]]; then
			[[ $(id -u) == 0 ]] || missing+=("root's rights")
		elif [[ $command == */* ]]; then
			[[ -e $command || -e $command.py ]] || missing+=("$package")
		else
			command -v "$command" >/dev/null || missing+=("$package")
		fi
	done < <("needs_$name")
	((${#missing[@]})) || return 0
	if ((!install)) || [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
		say "$name: not installed: ${missing[*]}" >&2
		return 1
	fi
	if ((!packages_updated)); then
		apt-get update -qq >"$WORK/apt.log" 2>&1 || true
		packages_updated=1
	fi
	# Servers that Debian would start at installation are none of our business.
	DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
		apt-get install -y -qq --no-install-recommends "${missing[@]}" >>"$WORK/apt.log" 2>&1 || {
		tail -n 5 "$WORK/apt.log" >&2
		return 1
	}
}

# Prints what is wrong with the linker's notes of a run: each process must have mapped the library.
evidence_problem() {
	local files without
	shopt -s nullglob
	files=("$1"/process.*)
	shopt -u nullglob
	if ((${#files[@]} == 0)); then
		say "no process left evidence of what it had mapped"
		return
	fi
	without=$(grep -L '/libkmem\.so' "${files[@]}" || true)
	if [[ -n $without ]]; then
		say "$(wc -l <<<"$without") of ${#files[@]} processes ran without the library, such as: $(
			sed -n 's/.*initialize program: //p' "$(head -n 1 <<<"$without")" | head -n 1
		)"
	fi
}

# Prints the configuration of the third run. Sandboxes let no process make files.
deep_configuration() {
	local boxes=$2/boxes
	if [[ " ${OPTIONAL_PROGRAMS[*]} " == *" $1 "* ]]; then
		printf 'depth:8'
	else
		mkdir -p "$boxes"
		chmod 1777 "$boxes"
		printf 'depth:8,boxes:%s' "$boxes"
	fi
}

# Prints what is wrong with the books of the largest processes of the third run.
books_problem() {
	local name=$1 boxes
	[[ " ${OPTIONAL_PROGRAMS[*]} " != *" $name "* ]] || return 0
	shopt -s nullglob
	boxes=("$WORK/$name.deep/boxes"/*)
	shopt -u nullglob
	if ((${#boxes[@]} == 0)); then
		say "no process left a black box"
		return
	fi
	du -k "${boxes[@]}" | sort -rn | head -n 4 | cut -f 2 | python3 -c '
import json, subprocess, sys
deepest = 0
for box in sys.stdin.read().split():
    command = [sys.argv[1], "dump", "--no-mmap", "--blackbox", box, "--json"]
    read = subprocess.run(command, capture_output=True, text=True)
    if read.returncode:
        sys.exit(print(f"a black box cannot be read: {read.stderr}"))
    books = json.loads(read.stdout)
    chains = [chain for row in books["rows"] for chain in row.get("chains") or []]
    deepest = max([deepest] + [len(chain["frames"]) for chain in chains])
    sums = sum(row["bytes"] for row in books["rows"]), sum(row["calls"] for row in books["rows"])
    totals, used = books["totals"], books["moment"]["used"]
    if sums != (totals["bytes"], totals["calls"]) or totals["bytes"] > used or books["torn"]:
        print("%s: rows of %s bytes and calls, totals of %s, %s bytes in use, %s torn" %
              (books["exe"], sums, totals, used, books["torn"]))
if deepest < 5:
    print(f"the longest chain of callers has {deepest}")
' "$kmem"
}

# Runs one program in one mode; leaves DIRECTORY.{out,err}, its exit code and its time in seconds.
run_mode() {
	local name=$1 mode=$2 directory="$WORK/$1.$2" start end
	mkdir -p "$directory/evidence"
	chmod 755 "$directory"
	chmod 1777 "$directory/evidence"
	start=$(date +%s%N)
	exit_code=0
	HERE=$directory EVIDENCE=$directory/evidence MODE=$mode \
		PRELOAD=$([[ $mode == with || $mode == deep ]] && printf '%s' "$WORK/libkmem.so" || true) \
		CONF=$([[ $mode == deep ]] && deep_configuration "$name" "$directory" || true) \
		timeout -k 10 "$([[ $QUICK == 1 ]] && printf 180 || printf 1800)" \
		bash -euo pipefail "$script" --one "$name" \
		>"$directory.out" 2>"$directory.err" </dev/null || exit_code=$?
	end=$(date +%s%N)
	stop_servers
	elapsed=$(awk "BEGIN { printf \"%.2f\", ($end - $start) / 1e9 }")
}

problem=
absent=
check() {
	local name=$1 without with deep mode codes=() logs
	problem=
	absent=
	install_missing "$name" || {
		if [[ " ${OPTIONAL_PROGRAMS[*]} " == *" $name "* ]]; then
			absent="it cannot be installed"
		else
			problem="cannot be installed"
		fi
		return
	}
	if declare -F "prepare_$name" >/dev/null; then
		"prepare_$name" >"$WORK/$name.prepare" 2>&1 || {
			problem="its input cannot be made: $(tail -n 3 "$WORK/$name.prepare")"
			return
		}
	fi
	run_mode "$name" without
	without=$elapsed
	if ((exit_code != 0)); then
		times=$(printf '%9s %9s %9s' "$without" - -)
		logs=$(tail -n 3 "$WORK/$name.without.out" "$WORK/$name.without.err")
		if [[ " ${OPTIONAL_PROGRAMS[*]} " == *" $name "* ]]; then
			absent="it ends with $exit_code without the library, too"
		else
			problem="exit code $exit_code without the library: $logs"
		fi
		return
	fi
	run_mode "$name" with
	with=$elapsed codes+=("$exit_code")
	[[ " ${SMALLER_PROGRAMS[*]} " != *" $name "* ]] || run_mode "$name" small
	run_mode "$name" deep
	deep=$elapsed codes+=("$exit_code")
	times=$(printf '%9s %9s %9s' "$without" "$with" "$deep")
	for mode in with deep; do
		problem=$(mode_problem "$name" "$mode" "${codes[0]}" 2>&1) ||
			problem="the check failed: $problem"
		codes=("${codes[@]:1}")
		if [[ -n $problem ]]; then
			[[ $mode == with ]] || problem="with depth:8: $problem"
			return
		fi
	done
}

# Prints what is wrong with a run, which ended with CODE.
mode_problem() {
	local name=$1 mode=$2 code=$3 logs messages
	local directory=$WORK/$name.$mode other=$WORK/$name.without
	[[ $mode == with || ! -f $WORK/$name.small.out ]] || other=$WORK/$name.small
	if ((code != 0)); then
		logs=$(tail -n 5 "$directory.out" "$directory.err")
		say "exit code $code with the library: $logs"
	elif ! cmp -s "$other.out" "$directory.out"; then
		say "different output: $(diff "$other.out" "$directory.out" | head -n 6)"
	elif [[ ! -s $directory.out ]]; then
		say "no output to compare"
	elif messages=$(grep -rhsE '^kmem: |cannot be preloaded' "$directory.err" "$directory" \
		--include='*.err' --include='*.log' || true) && [[ -n $messages ]]; then
		say "messages: $(head -n 3 <<<"$messages")"
	else
		evidence_problem "$directory/evidence"
		[[ $mode == with ]] || books_problem "$name"
	fi
}

passed=0
failed=0
printf '%-12s %-5s %9s %9s %9s  %s\n' program '' without with depth:8 'processes with the library'
for name in "${names[@]}"; do
	times=$(printf '%9s %9s %9s' - - -)
	check "$name"
	processes=$(find "$WORK/$name.with/evidence" -name 'process.*' 2>/dev/null | wc -l)
	if [[ -n $absent ]]; then
		not_run "real-programs.sh $name" "$absent"
	elif [[ -z $problem ]]; then
		passed=$((passed + 1))
		printf '%-12s %-5s %s  %s\n' "$name" ok "$times" "$processes"
	else
		failed=$((failed + 1))
		printf '%-12s %-5s %s  %s\n' "$name" FAIL "$times" "$processes"
		say "    ${problem//$'\n'/$'\n'    }"
	fi
	((keep)) || rm -rf "$WORK/$name".{with,without,small,deep}
done
say "$passed passed, $failed failed"
((failed == 0))
