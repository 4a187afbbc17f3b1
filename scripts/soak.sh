#!/usr/bin/env bash
#
# Storms on the library: threads, forks, signals in critical sections, changes of the CPU. Libraries
# come and go, and groups are deleted while they hold memory. Readers read all the time. After each
# storm the program says how many objects and bytes it holds, and the books must have the same
# numbers. Prints a line for each storm.
#
# usage: soak.sh [--library PATH] [--seconds N] [--conf TEXT] [STORM..]
#
#     --library PATH  the library (default: target/release/libkmem.so of this repository)
#     --seconds N     length of each storm (default: 60)
#     --conf TEXT     options of the library, as in KMEM_CONF. With hardened, redzone:1 and guard,
#                     objects are compared, and not bytes
#
# Storms: threads forks signals cpus plugins groups. Without names, all.

set -euo pipefail

repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
readonly repository
. "$repository/scripts/options.sh"

library=
kmem=
seconds=60
conf=
words=()
read_options 'library seconds conf ...' "$@"
choose threads forks signals cpus plugins groups
find_library
find_command

work=$(mktemp -d)
reader=
program=
finish() {
	[[ -z $reader ]] || kill "$reader" 2>/dev/null || true
	[[ -z $program ]] || kill "$program" 2>/dev/null || true
	rm -rf "$work"
}
trap finish EXIT
cc -g -O1 -pthread -I "$repository/include" -o "$work/soak" "$repository/scripts/soak/soak.c"
for number in {1..8}; do
	cc -g -O1 -shared -fPIC -I "$repository/include" -o "$work/plugin.so.$number" \
		"$repository/scripts/soak/plugin.c"
done

mkfifo "$work/in" "$work/out"
KMEM_CONF=$conf LD_PRELOAD=$library "$work/soak" "$seconds" "$work/plugin.so" "${words[@]}" \
	<"$work/in" >"$work/out" 2>"$work/errors" &
program=$!
exec {input}>"$work/in" {output}<"$work/out"

# The program has opened its files before the library is there.
for ((tries = 0; tries < 300; tries++)); do
	"$kmem" dump -p "$program" --format 2.0 >/dev/null 2>&1 && break
	kill -0 "$program" 2>/dev/null || die "the program does not start"
	sleep 0.1
done

# Live objects and bytes of a process, by its books.
booked() {
	"$kmem" dump -p "$1" --function 'soak_*' --format csv 2>"$work/booked" |
		awk -F, 'NR > 1 { bytes += $1; calls += $2 } END { printf "%d %d", calls, bytes }'
}

# Lines of the program's messages, without those of libraries that are unloaded and of groups at
# their limits: these are what the storms are for.
unexpected() {
	grep -v -e '^kmem: .* is unloaded, and memory it allocated is in use:$' \
		-e '^kmem: the group .* is at its' -e '^Memory allocations of the group:$' -e '^ ' \
		"$work/errors" | head -n 20
}

# Reads the process until it is killed. A reading of books that change is never an error.
(
	while "$kmem" dump -p "$program" --format 2.0 >"$work/reading" 2>"$work/reader"; do
		echo >>"$work/readings"
	done
) &
reader=$!

# The program counts bytes by malloc_usable_size. With these options that is the length of a
# request, and the books have the length of its memory.
compare_bytes=yes
[[ ! ,$conf, =~ ,(hardened|redzone:1|guard), ]] || compare_bytes=

failed=0
printf '%-8s %7s  %8s %12s  %-8s %s\n' storm seconds objects bytes books done
for storm in "${words[@]}"; do
	if ! read -r -t $((seconds + 120)) _ name took objects bytes what <&"$output"; then
		unexpected >&2 || true
		die "the program has ended, or is stuck, in the storm $storm"
	fi
	books=equal
	held=$(booked "$program")
	[[ $compare_bytes ]] || held="${held% *} $bytes"
	[[ $held == "$objects $bytes" ]] || books=differ failed=1
	printf '%-8s %7s  %8s %12s  %-8s %s\n' "$name" "$took" "$objects" "$bytes" "$books" "$what"
	if [[ $books == differ ]]; then
		printf 'the books have %s\n' "$(booked "$program")"
		grep -v '^kmem: a filter is on' "$work/booked" >&2 || true
	fi
	if ! kill -0 "$reader" 2>/dev/null; then
		cat "$work/reader" >&2
		die "a reading failed in the storm $name"
	fi
	echo >&"$input"
done
wait "$program" || failed=1
program=
messages=$(unexpected || true)
[[ -z $messages ]] || { printf '%s\n' "$messages" >&2; failed=1; }
echo "$(wc -l <"$work/readings") readings beside them"
exit "$failed"
