#!/usr/bin/env bash
#
# Runs commands that start other programs under `kmem run`, and checks the reports. The program that
# matters is first, the processes of one program are one section, and memory that a process
# inherited counts once.
#
# usage: process-trees.sh [--library PATH] [--kmem PATH] [--keep] [NAME...]
#
#     --library PATH  the library (default: target/release/libkmem.so of this repository)
#     --kmem PATH     the command (default: kmem beside the library)
#     --keep          keep the working directory, with all reports
#     NAME...         only these: make, fork, spawn, postgresql, gunicorn, killed, limited, shims
#
# killed is gunicorn with a worker that SIGKILL ends, after a core of it was taken. In limited, a
# worker grows until the kernel kills it at the limit of a memory control group. gunicorn comes from
# PyPI. A program that is missing is listed by not-run.sh. The last line is "N passed, M failed".
# The exit code is 0 if nothing failed.

set -euo pipefail

readonly ALL_NAMES=(make fork spawn postgresql gunicorn killed limited shims)

repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
readonly repository
readonly sources=$repository/scripts/process-trees
readonly PYTHON=/usr/bin/python3

# shellcheck source=scripts/not-run.sh
. "$repository/scripts/not-run.sh"

. "$repository/scripts/options.sh"

library=
kmem=
keep=0
read_options 'library kmem keep! ...' "$@"
choose "${ALL_NAMES[@]}"
find_library
find_command

# Every user may read it: PostgreSQL runs as another one.
WORK=$(mktemp -d /tmp/process-trees.XXXXXX)
chmod 755 "$WORK"
install -m 755 "$library" "$WORK/libkmem.so"
install -m 755 "$kmem" "$WORK/kmem"

finish() {
	if ((keep)); then
		printf 'kept %s\n' "$WORK"
	else
		rm -rf "$WORK"
	fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The programs must see nothing of the caller's own wishes.
unset LD_PRELOAD KMEM_CONF MAKEFLAGS PYTHONMALLOC
export LC_ALL=C.UTF-8

# --------------------------------------------------------------------------------------------------
# Helpers

# A command that runs beside this script, and which ends with it.
running=

# Runs a command under `kmem run`, with the report in REPORT of the working directory.
tree() {
	local report=$1
	shift
	"$WORK/kmem" run --library "$WORK/libkmem.so" -o "$WORK/$report" "$@"
}

check() {
	local name=$1 report=$2
	shift 2
	python3 "$sources/check.py" "$name" "$WORK/$report" "$@"
}

# The base name of the interpreter's program, as reports have it.
python_name() {
	basename "$(readlink -f "$PYTHON")"
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

# Prints why a command of a list cannot be run, if one cannot.
lacks() {
	local command
	for command in "$@"; do
		if ! command -v "$command" >/dev/null; then
			printf 'there is no %s\n' "$command"
			return
		fi
	done
}

# --------------------------------------------------------------------------------------------------
# The trees: lacks_NAME prints why NAME cannot run, if it cannot; run_NAME runs and checks it.

readonly COMPILATIONS=5

lacks_make() {
	lacks make gcc
	[[ -x $(gcc -print-prog-name=cc1 2>/dev/null) ]] || printf 'gcc has no cc1\n'
}

run_make() {
	local directory=$WORK/make file i
	mkdir "$directory"
	for ((file = 0; file < COMPILATIONS; file++)); do
		for ((i = 0; i < 40; i++)); do
			printf 'int f%s_%s(int n) { int s = %s; for (int i = 0; i < n; i++) {' "$file" "$i" "$i"
			printf ' s += i * %s; if (s %% 3 == 0) s ^= n; else s -= i >> 1;' "$i"
			printf ' switch (s %% 5) { case 0: s++; break; case 1: s *= 3; } } return s; }\n'
		done >"$directory/part$file.c"
	done
	printf 'int main(void) { return 0; }\n' >>"$directory/part0.c"
	cat >"$directory/Makefile" <<'MAKE'
objects := $(patsubst %.c,%.o,$(wildcard *.c))
program: $(objects)
	gcc -o $@ $^
%.o: %.c
	gcc -O1 -c -o $@ $<
MAKE
	tree make.txt -- make -s -j2 -C "$directory"
	check make make.txt "$COMPILATIONS"
	tree make-only.txt --only cc1 -- make -s -B -C "$directory" part1.o part2.o
	check only make-only.txt cc1
}

lacks_fork() {
	lacks "$PYTHON"
}

run_fork() {
	tree fork.txt -- "$PYTHON" "$sources/workers.py" fork
	check fork fork.txt "$(python_name)"
}

lacks_spawn() {
	lacks "$PYTHON"
}

run_spawn() {
	tree spawn.txt -- "$PYTHON" "$sources/workers.py" spawn
	check spawn spawn.txt "$(python_name)"
}

# The directory of the newest server.
postgres_directory() {
	local found
	found=$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | sort -V | tail -n 1) || return 1
	dirname "$found"
}

lacks_postgresql() {
	postgres_directory >/dev/null || printf 'there is no PostgreSQL\n'
	[[ $(id -u) != 0 ]] || lacks runuser
}

# PostgreSQL refuses root.
as_postgres() {
	if [[ $(id -u) == 0 ]]; then
		runuser -u postgres -- "$@"
	else
		"$@"
	fi
}

run_postgresql() {
	local bin directory=$WORK/postgresql sessions=3 i command
	bin=$(postgres_directory)
	mkdir "$directory"
	[[ $(id -u) != 0 ]] || chown postgres "$directory"
	as_postgres "$bin/initdb" -D "$directory/data" -U tester -A trust --no-sync --locale=C -E UTF8 \
		>"$directory.log" 2>&1
	command=("$WORK/kmem" run --library "$WORK/libkmem.so" -o "$directory/report.txt" --all --
		"$bin/postgres" -D "$directory/data" -k "$directory" -c listen_addresses= -c fsync=off
		-c shared_buffers=64MB -c jit=off)
	as_postgres "${command[@]}" >>"$directory.log" 2>&1 &
	running=$!
	wait_until 30 "$bin/pg_isready" -q -h "$directory" -U tester
	for ((i = 0; i < sessions; i++)); do
		"$bin/psql" -h "$directory" -U tester -d postgres -X -A -t -q -v ON_ERROR_STOP=1 \
			-c "SELECT length(array_agg(repeat('x', 100) || i)::text)
				FROM generate_series(1, 100000) AS t(i)" >"$directory.out"
	done
	# A fast shutdown. The command is a child of runuser, and has the server's number.
	kill -INT "$(head -n 1 "$directory/data/postmaster.pid")"
	wait "$running"
	running=
	check postgresql postgresql/report.txt "$sessions"
}

# Installs gunicorn, and prints why it cannot be had, if it cannot.
lacks_gunicorn() {
	local venv=$repository/target/process-trees/venv
	lacks "$PYTHON" curl
	[[ ! -x $venv/bin/gunicorn ]] || return 0
	{ "$PYTHON" -m venv "$venv" && "$venv/bin/pip" install -q gunicorn; } >"$WORK/pip.log" 2>&1 ||
		printf 'pip cannot install gunicorn\n'
}

lacks_killed() {
	lacks_gunicorn
	lacks gcore
}

# Runs four workers, and sends requests to them: serve REPORT SIGNAL. SIGNAL ends a worker, if it is
# not empty, after its core was taken. Then SIGTERM ends the command.
serve() {
	local report=$1 signal=$2 socket=$WORK/$1.socket clients=() client worker
	(
		cd "$sources"
		export PYTHONDONTWRITEBYTECODE=1
		exec "$WORK/kmem" run --library "$WORK/libkmem.so" -o "$WORK/$report" -- \
			"$repository/target/process-trees/venv/bin/gunicorn" --no-control-socket --workers 4 \
			--bind "unix:$socket" --pid "$socket.pid" service:application
	) >"$WORK/$report.log" 2>&1 &
	running=$!
	wait_until 30 curl -sf --unix-socket "$socket" http://service/
	for client in 1 2 3 4; do
		curl -sf --unix-socket "$socket" "http://service/leak?[1-$REQUESTS]" >/dev/null &
		clients+=($!)
	done
	for client in "${clients[@]}"; do
		wait "$client"
	done
	if [[ -n $signal ]]; then
		worker=$(workers_of "$(<"$socket.pid")" | head -n 1)
		core_has_the_leak "$worker" "$WORK/$report.core"
		kill -s "$signal" "$worker"
		wait_until 30 has_another_worker "$socket.pid" "$worker"
	fi
	kill -TERM "$running"
	wait "$running"
	running=
}

# Takes a core of a process, and checks that most of its bytes are of the line of the leak.
core_has_the_leak() {
	local pid=$1 core=$2 most
	gcore -o "$core" "$pid" >/dev/null 2>&1
	most=$("$WORK/kmem" dump --format csv --core "$core.$pid" 2>/dev/null | sort -rn | sed -n 1p)
	rm "$core.$pid"
	[[ $most == *application*service.py* ]] || {
		printf 'killed: most bytes of the core are of %s\n' "$most"
		return 1
	}
}

# Requests of each client.
readonly REQUESTS=100

workers_of() {
	tr ' ' '\n' <"/proc/$1/task/$1/children" | sed '/^$/d'
}

has_another_worker() {
	local now
	now=$(workers_of "$(<"$1")")
	[[ $(wc -l <<<"$now") == 4 && $'\n'$now$'\n' != *$'\n'$2$'\n'* ]]
}

run_gunicorn() {
	serve gunicorn.txt ''
	check gunicorn gunicorn.txt "$(python_name)" $((4 * REQUESTS)) 4
}

run_killed() {
	serve killed.txt KILL
	check gunicorn killed.txt "$(python_name)" $((4 * REQUESTS)) 5
}

# Bytes that the group of run_limited may have.
readonly LIMIT=$((160 << 20))
group=

# Makes a memory control group with the limit, and sets `group`.
make_group() {
	local root file swap
	for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
		file=memory.max
		[[ $root != */memory ]] || file=memory.limit_in_bytes
		group=$root/kmem-trees-$$
		[[ -e $root/cgroup.procs ]] && mkdir "$group" 2>/dev/null || continue
		# Swap would only delay the kill.
		for swap in memory.swap.max memory.swappiness; do
			[[ ! -e $group/$swap ]] || echo 0 >"$group/$swap" || true
		done
		# The kernel must not kill all of the group.
		[[ ! -e $group/memory.oom.group ]] || echo 0 >"$group/memory.oom.group" || true
		{ echo "$LIMIT" >"$group/$file"; } 2>/dev/null && return
		rmdir "$group"
	done
	group=
	return 1
}

lacks_limited() {
	lacks_gunicorn
	if make_group; then
		rmdir "$group"
	else
		printf 'no memory control group can be made\n'
	fi
}

# One worker keeps what requests bring, until the kernel kills it.
run_limited() {
	local socket=$WORK/limited.socket worker requests=0
	make_group
	trap 'rmdir "$group" 2>/dev/null || true; [[ -z $running ]] || kill "$running" 2>/dev/null' EXIT
	(
		cd "$sources"
		export PYTHONDONTWRITEBYTECODE=1
		exec "$WORK/kmem" run --library "$WORK/libkmem.so" -o "$WORK/limited.txt" -- \
			sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' sh "$group" \
			"$repository/target/process-trees/venv/bin/gunicorn" --no-control-socket --workers 1 \
			--bind "unix:$socket" --pid "$socket.pid" service:application
	) >"$WORK/limited.log" 2>&1 &
	running=$!
	wait_until 30 curl -sf --unix-socket "$socket" http://service/
	worker=$(workers_of "$(<"$socket.pid")")
	while [[ -e /proc/$worker ]] && ((requests < LIMIT / 100000)); do
		curl -s --unix-socket "$socket" "http://service/grow?[1-100]" >/dev/null || break
		requests=$((requests + 100))
	done
	wait_until 30 curl -sf --unix-socket "$socket" http://service/
	kill -TERM "$running"
	wait "$running"
	running=
	grep -q "(pid:$worker) was sent SIGKILL" "$WORK/limited.log"
	check limited limited.txt "$(python_name)" "$LIMIT"
}

lacks_shims() {
	lacks "$PYTHON"
}

# Scripts that become the programs of their names, as those of version managers.
run_shims() {
	local directory=$WORK/shims
	mkdir "$directory"
	cat >"$directory/expr" <<'SHIM'
#!/usr/bin/env bash
set -e
program=${0##*/}
for directory in /usr/bin /bin; do
	[[ ! -x $directory/$program ]] || exec "$directory/$program" "$@"
done
SHIM
	chmod 755 "$directory/expr"
	ln -s expr "$directory/python3"
	cat >"$directory/script" <<'SCRIPT'
#!/usr/bin/env bash
for i in {1..20}; do
	bash -c "expr $i + 1; true" >/dev/null
done
python3 -c 'held = [bytes(1000) for _ in range(20000)]'
SCRIPT
	PATH=$directory:$PATH tree shims.txt -- bash "$directory/script"
	check shims shims.txt "$(python_name)"
	PATH=$directory:$PATH tree shims-all.txt --all -- bash "$directory/script"
	check all shims-all.txt
	PATH=$directory:$PATH tree shims-only.txt --only expr -- bash "$directory/script"
	check only shims-only.txt expr
}

# --------------------------------------------------------------------------------------------------

passed=0
failed=0
for name in "${words[@]}"; do
	reason=$("lacks_$name" | head -n 1)
	if [[ -n $reason ]]; then
		not_run "process-trees.sh $name" "$reason"
		continue
	fi
	began=$SECONDS
	# Not as a condition: within one, no failed command ends a function.
	set +e
	(
		set -e
		trap '[[ -z $running ]] || kill "$running" 2>/dev/null' EXIT
		"run_$name"
	)
	code=$?
	set -e
	if ((code == 0)); then
		passed=$((passed + 1))
		printf '%-12s ok    %3s s\n' "$name" $((SECONDS - began))
	else
		failed=$((failed + 1))
		printf '%-12s FAIL  %3s s\n' "$name" $((SECONDS - began))
	fi
done
printf '%s passed, %s failed\n' "$passed" "$failed"
((failed == 0))
