#!/usr/bin/env bash
#
# Runs docs/how-to/fleet.md: real processes are watched, a day of many machines is made out of their
# files, and each question of the page is asked. The answers must name what was decided before.
# Prints sizes and times.
#
# usage: fleet.sh [--library PATH] [--kmem PATH] [--hosts N]
#
#     --library PATH  the library (default: target/release/libkmem.so of this repository)
#     --kmem PATH     the command (default: the one beside the library)
#     --hosts N       machines (default: 1000)
#
# pip gets DuckDB, and ClickHouse as the package chdb, into target/fleet.

set -euo pipefail

repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
readonly repository
. "$repository/scripts/not-run.sh"
. "$repository/scripts/options.sh"

library=
kmem=
hosts=1000
read_options 'library kmem hosts' "$@"
find_library
find_command

venv=$repository/target/fleet/tools
if [[ ! -x $venv/bin/pip ]] && ! python3 -m venv "$venv" >/dev/null 2>&1; then
	not_run fleet "python3 -m venv fails"
	exit 0
fi
for package in duckdb chdb; do
	"$venv/bin/python" -c "import $package" 2>/dev/null ||
		"$venv/bin/pip" install -q "$package" >/dev/null 2>&1 ||
		not_run "fleet::$package" "pip cannot install $package"
done
"$venv/bin/python" -c "import duckdb" 2>/dev/null || exit 0

work=$(mktemp -d "$repository/target/fleet/run.XXXXXX")
children=()
finish() {
	((${#children[@]} == 0)) || kill "${children[@]}" 2>/dev/null || true
	rm -rf "$work"
}
trap finish EXIT
readonly services=(api batch cache web)
# A shim would run another program of another name.
python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
names=()
for service in "${services[@]}"; do
	ln -s "$python" "$work/$service"
	names+=(--name "$service")
	mkfifo "$work/$service.in" "$work/$service.out"
	LD_PRELOAD=$library PYTHONMALLOC=malloc "$work/$service" \
		"$repository/scripts/fleet/service.py" <"$work/$service.in" >"$work/$service.out" &
	children+=($!)
done
# The services run as long as their inputs are open.
for service in "${services[@]}"; do
	exec {input}>"$work/$service.in" {output}<"$work/$service.out"
	read -r _ <&"$output" || die "$service does not start"
done
"$kmem" watch "${names[@]}" --every 500ms --interval 500ms --partitioned --format parquet \
	-n 300 -o "$work/real" 2>"$work/watch.log" &
watch=$!
children+=("$watch")
# Files of all services, by the names of their processes.
seen() {
	find "$work/real" -name '*.interval.parquet' -printf '%f\n' 2>/dev/null | cut -d. -f1 | sort -u
}
SECONDS=0
until [ "$(seen | wc -l)" -eq ${#services[@]} ]; do
	if ((SECONDS > 120)) || ! kill -0 "$watch" 2>/dev/null; then
		cat "$work/watch.log" >&2
		die "the watch has written no files of all services"
	fi
	sleep 0.2
done
kill "$watch"
wait "$watch" || die "the watch has lost files: $(tail -n 1 "$work/watch.log")"
"$venv/bin/python" "$repository/scripts/fleet/simulate.py" "$repository/docs/how-to/fleet.md" \
	"$work/real" "$work/out" "$hosts"
