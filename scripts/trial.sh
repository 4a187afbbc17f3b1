#!/usr/bin/env bash
#
# Tries memory tools as a new user would, and prints one table. It has the commands to the answer,
# the first row of the answer, and the time that the program takes under the tool.
# Missing tools are installed from Debian, and memray from PyPI, when this runs as root.
#
# usage: trial.sh [--tools A,B] [--programs A,B] [--runs N] [--markdown] [--check] [--no-install]
#                 [--keep] [--library PATH] [--kmem PATH] [--limit SECONDS] [--list]
#
#     --tools A,B      try only these tools
#     --programs A,B   try only with these programs
#     --runs N         runs of each tool that is not slow, of which the median counts; default: 3
#     --markdown       print the table as Markdown
#     --check          fail unless each first row names the line or the function
#     --no-install     never install anything
#     --keep           keep the working directory, with all that the tools printed
#     --library PATH   the libkmem.so to try (default: that of target/release)
#     --kmem PATH      the kmem to try (default: that of target/release)
#     --limit SECONDS  end a program that takes longer; default: 300
#     --list           print the names of the tools and the programs, and exit
#
# Each program holds most of its memory by one known place. The first row that a tool prints is
# compared with that place:
#
#     yes            the row names the file and the line
#     function only  the row names the function, as it must where there is no debug information
#     wrapper        the row names a function through which many allocations go
#     no             the row names another place, or none
#
# "N up" says that the place stands in the row's stack, N callers farther out. Runs of the plain
# program and of the tools alternate. A tool that cannot run is listed by not-run.sh.

set -euo pipefail

readonly ALL_TOOLS=(kmem kmem-depth heaptrack memray jeprof gperftools massif dhat)
# Tools under which programs take so long that one run must do.
readonly SLOW_TOOLS=(gperftools massif dhat)
readonly ALL_PROGRAMS=(c++ c++-text rust rust-text redis node python g++)

script=$(readlink -f "${BASH_SOURCE[0]}")
readonly script
repository=$(dirname "$(dirname "$script")")
readonly repository
readonly sources=$repository/scripts/trial

# shellcheck source=scripts/not-run.sh
. "$repository/scripts/not-run.sh"

say() {
	printf '%s\n' "$*"
}

die() {
	printf 'trial: %s\n' "$*" >&2
	exit 2
}

# --------------------------------------------------------------------------------------------------
# The programs.

# The function prepare_NAME fills COMMAND, and BINARY, which profiles refer to. It fills three
# regular expressions. LINE matches file and line of the place that holds the memory. FUNCTION
# matches its function, and WRAPPER the functions between it and the allocator.

# Prints the file and the line that ends with a comment: "the leak", unless told otherwise.
line_of() {
	say "$1:$(sed -nE "/(\/\/|#) ${2:-the leak}\$/=" "$sources/$1")"
}

needs_c++() {
	say "g++ g++"
}

prepare_c++() {
	g++ -O2 -g -pthread "$sources/leak.cc" -o "$WORK/leak-c++"
	COMMAND=("$WORK/leak-c++")
	BINARY=$WORK/leak-c++
	LINE=$(line_of leak.cc)
	FUNCTION='open_session'
	WRAPPER='operator new|malloc|std::'
}

needs_c++-text() {
	say "g++ g++"
}

prepare_c++-text() {
	prepare_c++
	g++ -DTEXT -O2 -g -pthread "$sources/leak.cc" -o "$BINARY"
	LINE=$(line_of leak.cc "the text")
}

needs_rust() {
	say "rustc rustc"
}

prepare_rust() {
	rustc --edition 2021 -C opt-level=3 -g "$sources/leak.rs" -o "$WORK/leak-rust"
	COMMAND=("$WORK/leak-rust")
	BINARY=$WORK/leak-rust
	LINE=$(line_of leak.rs)
	FUNCTION='open_session'
	WRAPPER='alloc::|5alloc|library/(alloc|std|core)/|__rust_|__rdl_|malloc|std::|core::'
}

needs_rust-text() {
	say "rustc rustc"
}

prepare_rust-text() {
	prepare_rust
	rustc --edition 2021 --cfg text -C opt-level=3 -g "$sources/leak.rs" -o "$BINARY"
	LINE=$(line_of leak.rs "the text")
}

needs_redis() {
	say "redis-server redis-server"
	say "redis-cli redis-tools"
	say "redis-benchmark redis-tools"
}

# Debian's server has no debug information, so that a function is the best that a row can name.
prepare_redis() {
	COMMAND=(redis-server --port 0 --unixsocket "$WORK/socket" --save '' --appendonly no
		--dir "$WORK" --daemonize no)
	BINARY=$(command -v redis-server)
	LINE='hash\.c:[0-9]'
	FUNCTION='hsetCommand|hashType[A-Z]'
	WRAPPER='z(m|c|re)alloc|sds|dict|malloc|calloc|createStringObject|operator new'
}

# The load of the server: one hash with 200,000 fields of 200 bytes.
drive_redis() {
	local client=(redis-cli -s "$WORK/socket") server=$1 end=$((SECONDS + LIMIT)) code=0
	until "${client[@]}" ping >/dev/null 2>&1; do
		((SECONDS < end)) && kill -0 "$server" 2>/dev/null || return 1
		sleep 0.05
	done
	STARTED=$(date +%s%N)
	timeout "$LIMIT" redis-benchmark -s "$WORK/socket" -q -c 20 -P 16 -n 600000 -r 200000 -d 200 \
		-t hset >"$HERE/load" 2>&1 || code=$?
	ENDED=$(date +%s%N)
	timeout 60 "${client[@]}" shutdown nosave >/dev/null 2>&1 || true
	return "$code"
}

needs_node() {
	say "node nodejs"
}

prepare_node() {
	COMMAND=(node "$sources/leak.js")
	BINARY=$(command -v node)
	LINE=$(line_of leak.js)
	FUNCTION='remember'
	WRAPPER='v8::base::OS|v8::internal::.*(Alloc|Memory|Page|Space)|malloc|operator new|mmap'
}

needs_python() {
	say "/usr/bin/python3 python3"
}

# The system's interpreter: a shim of a version manager would be a program of its own.
prepare_python() {
	COMMAND=(/usr/bin/python3 "$sources/leak.py")
	BINARY=$(readlink -f /usr/bin/python3)
	LINE=$(line_of leak.py)
	FUNCTION='remember'
	WRAPPER='Py[A-Z_]|malloc|mmap'
}

needs_g++() {
	say "g++ g++"
}

# The compiler proper is cc1plus, a child of g++. It has no debug information, either. Most of its
# memory is the syntax tree, in its own mappings: nodes of declarations and types, and the tokens of
# the source. On its heap, the table of source locations is the largest.
prepare_g++() {
	COMMAND=(g++ -std=c++17 -S "$sources/templates.cc" -o "$WORK/templates.s")
	BINARY=$(g++ -print-prog-name=cc1plus)
	LINE='(line-map|tree|lex|parser|pt)\.(c|cc):[0-9]'
	FUNCTION='(make|copy)_node|rtx_alloc|c_parse_file|get_combined_adhoc_loc|linemap_|line_table'
	WRAPPER='x(m|c|re)alloc|htab_|ggc_|malloc|calloc|operator new|obstack'
}

# --------------------------------------------------------------------------------------------------
# The tools.

# The function launch_NAME fills TYPED, the command that a user types to run the program. The
# function show_NAME prints the first row of the answer. The callers in the row follow, a line each.

# Runs a command that a user types for the answer, and notes it.
step() {
	say "${*@Q}" >>"$HERE/steps"
	"$@"
}

# Prints the profile with most bytes in use: the one of the peak, or of the largest process. The
# sums of jemalloc are of the sampled objects alone, so they are scaled as jeprof does it.
largest_profile() {
	local file
	for file in "$@"; do
		awk -F '[/: ]+' -v OFS=' ' '
			/^heap_v2/ { rate = $2 }
			/^heap profile:/ { print $4, FILENAME; exit }
			/^  t\*:/ { if ($3) bytes = $4 / (1 - exp(-$4 / $3 / rate))
				printf "%.0f %s\n", bytes, FILENAME; exit }' "$file"
	done | sort -n | tail -n 1 | cut -d ' ' -f 2-
}

# Prints the first row of a table of pprof, without its numbers.
first_of_pprof() {
	awk '$1 ~ /^[0-9.]+$/ && $2 ~ /%$/ && $5 ~ /%$/ {
		$1 = $2 = $3 = $4 = $5 = ""; print; exit }' "$1"
}

needs_kmem() { :; }

launch_kmem() {
	TYPED=(env "$KMEM" run --library "$WORK/libkmem.so" -- "${COMMAND[@]}")
}

show_kmem() {
	awk 'rows && NF { $1 = $2 = $3 = ""; print; exit } /^ +SIZE +OBJECTS +FUNCTION/ { rows = 1 }' \
		<(sed -E 's/^ *([0-9.]+) ([KMGT]i)?B /\1 \2B /' "$HERE/err")
}

needs_kmem-depth() { :; }

launch_kmem-depth() {
	TYPED=(env KMEM_CONF=depth:8 "$KMEM" run --library "$WORK/libkmem.so" -- "${COMMAND[@]}")
}

show_kmem-depth() {
	show_kmem
}

needs_heaptrack() {
	say "heaptrack heaptrack"
}

# heaptrack does not follow children, but g++ can start its compiler under a wrapper.
launch_heaptrack() {
	if [[ ${COMMAND[0]} == g++ ]]; then
		TYPED=(g++ -wrapper "heaptrack,-o,$HERE/profile" "${COMMAND[@]:1}")
	else
		TYPED=(heaptrack -o "$HERE/profile" "${COMMAND[@]}")
	fi
}

# The row ends where a second branch of its callers begins.
show_heaptrack() {
	step heaptrack_print "$HERE"/profile.* >"$HERE/answer" 2>>"$HERE/err"
	awk '/^PEAK MEMORY CONSUMERS/ { on = 1; next }
		!on { next }
		/peak memory consumed over/ { if (row++) exit; next }
		/consumed over/ { if (branch++) exit; next }
		/^$/ { exit }
		$1 == "at" || $1 == "in" && !placed { sub(/^ */, ""); name = name " " $0; placed = 1; next }
		$1 == "in" { next }
		{ if (name) print name; sub(/^ */, ""); name = $0; placed = 0 }
		END { if (name) print name }' "$HERE/answer"
}

needs_memray() {
	say "$(compgen -G '/usr/lib/python3.*/ensurepip' || say /usr/lib/python3/ensurepip) python3-venv"
}

launch_memray() {
	TYPED=("$VENV/bin/memray" run -f -o "$HERE/profile" "${COMMAND[@]:1}")
}

show_memray() {
	step "$VENV/bin/memray" stats "$HERE/profile" >"$HERE/answer" 2>>"$HERE/err"
	sed -n '/largest allocating locations (by size)/,$s/^[[:space:]]*- //p' "$HERE/answer" | head -n 1
}

needs_jeprof() {
	say "jeprof libjemalloc-dev"
	say "perl perl"
}

# The interpreter of Python frees all at its end, so that a profile of the peak is needed.
launch_jeprof() {
	local when=prof_final:true
	[[ $PROGRAM != python ]] || when+=,prof_gdump:true
	TYPED=(env "LD_PRELOAD=$JEMALLOC" "MALLOC_CONF=prof:true,$when,prof_prefix:$HERE/profile"
		"${COMMAND[@]}")
}

show_jeprof() {
	step jeprof --text --lines "$BINARY" "$(largest_profile "$HERE"/profile.*.heap)" \
		>"$HERE/answer" 2>>"$HERE/err"
	first_of_pprof "$HERE/answer"
}

needs_gperftools() {
	say "google-pprof google-perftools"
	say "perl perl"
}

launch_gperftools() {
	local when=()
	[[ $PROGRAM != python ]] || when=(HEAP_PROFILE_INUSE_INTERVAL=10485760)
	TYPED=(env "LD_PRELOAD=$TCMALLOC" "HEAPPROFILE=$HERE/profile" "${when[@]}" "${COMMAND[@]}")
}

show_gperftools() {
	step google-pprof --text --lines "$BINARY" "$(largest_profile "$HERE"/profile*.heap)" \
		>"$HERE/answer" 2>>"$HERE/err"
	first_of_pprof "$HERE/answer"
}

needs_massif() {
	say "valgrind valgrind"
}

launch_massif() {
	TYPED=(valgrind --tool=massif "--massif-out-file=$HERE/profile.%p")
	[[ $PROGRAM != g++ ]] || TYPED+=(--trace-children=yes)
	TYPED+=("${COMMAND[@]}")
}

# The profile of the largest process is the longest, as a rule.
show_massif() {
	local profile
	profile=$(find "$HERE" -name 'profile.*' -printf '%s %p\n' | sort -n | tail -n 1)
	profile=${profile#* }
	step ms_print "$profile" >"$HERE/answer" 2>>"$HERE/err"
	awk '/Detailed snapshots:/ && match($0, /[0-9]+ \(peak\)/) { peak = $0
			sub(/ \(peak\).*/, "", peak); sub(/.*[^0-9]/, "", peak) }
		$1 == peak && $2 ~ /^[0-9,]+$/ { on = 1; next }
		on && match($0, /->/) { if (RSTART <= depth) exit
			depth = RSTART; sub(/.*0x[0-9A-F]+: /, ""); print; next }
		on && depth { exit }' "$HERE/answer"
}

needs_dhat() {
	say "valgrind valgrind"
}

launch_dhat() {
	TYPED=(valgrind --tool=dhat "--dhat-out-file=$HERE/profile.%p")
	[[ $PROGRAM != g++ ]] || TYPED+=(--trace-children=yes)
	TYPED+=("${COMMAND[@]}")
}

# The viewer of dhat is a page for a browser. This takes its first row by bytes at the peak, without
# the frames of valgrind itself.
show_dhat() {
	say "dh_view.html in a browser" >>"$HERE/steps"
	python3 -c 'import json, sys
best = None
for name in sys.argv[1:]:
    profile = json.load(open(name))
    for point in profile["pps"]:
        if best is None or point["gb"] > best[0]:
            best = point["gb"], [profile["ftbl"][frame] for frame in point["fs"]]
frames = [frame.split(": ", 1)[-1] for frame in best[1]]
print("\n".join(frame for frame in frames if "vgpreload" not in frame))' "$HERE"/profile.*
}

# --------------------------------------------------------------------------------------------------
# Options

chosen_tools=("${ALL_TOOLS[@]}")
chosen_programs=("${ALL_PROGRAMS[@]}")
runs=3
markdown=0
check=0
install=1
keep=0
library=
KMEM=
LIMIT=300
while (($#)); do
	case $1 in
	--tools | --programs | --runs | --library | --kmem | --limit)
		(($# > 1)) || die "$1 needs a value"
		;;&
	--tools)
		IFS=, read -r -a chosen_tools <<<"$2"
		for name in "${chosen_tools[@]}"; do
			[[ " ${ALL_TOOLS[*]} " == *" $name "* ]] || die "unknown tool $name; --list shows all"
		done
		shift
		;;
	--programs)
		IFS=, read -r -a chosen_programs <<<"$2"
		for name in "${chosen_programs[@]}"; do
			[[ " ${ALL_PROGRAMS[*]} " == *" $name "* ]] || die "unknown program $name; --list shows all"
		done
		shift
		;;
	--runs)
		[[ $2 =~ ^[1-9][0-9]*$ ]] || die "--runs needs a number"
		runs=$2
		shift
		;;
	--limit)
		[[ $2 =~ ^[1-9][0-9]*$ ]] || die "--limit needs a number"
		LIMIT=$2
		shift
		;;
	--library)
		library=$2
		shift
		;;
	--kmem)
		KMEM=$2
		shift
		;;
	--markdown) markdown=1 ;;
	--check) check=1 ;;
	--no-install) install=0 ;;
	--keep) keep=1 ;;
	--list)
		say "tools: ${ALL_TOOLS[*]}"
		say "programs: ${ALL_PROGRAMS[*]}"
		exit 0
		;;
	-h | --help)
		sed -n '3,/^$/s/^# \{0,1\}//p' "$script"
		exit 0
		;;
	*) die "unknown option $1" ;;
	esac
	shift
done

readonly target=${CARGO_TARGET_DIR:-$repository/target}
if [[ " ${chosen_tools[*]} " == *" kmem"* ]]; then
	library=${library:-$target/release/libkmem.so}
	KMEM=$(readlink -f "${KMEM:-$target/release/kmem}")
	[[ -f $library && -x $KMEM ]] ||
		die "no kmem: build it with 'cargo build --release -p kmem-preload -p kmem-cli'," \
			"or give --library and --kmem"
fi

WORK=$(mktemp -d /tmp/trial.XXXXXX)
server=
finish() {
	[[ -z $server ]] || kill "$server" 2>/dev/null || true
	if ((keep)); then
		say "kept $WORK" >&2
	else
		rm -rf "$WORK"
	fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

[[ -z $library ]] || install -m 755 "$library" "$WORK/libkmem.so"
# A tool is tried as it is, without wishes of the caller.
unset LD_PRELOAD KMEM_CONF KMEM_LIBRARY MALLOC_CONF HEAPPROFILE GLIBC_TUNABLES PYTHONMALLOC
export LC_ALL=C.UTF-8

# --------------------------------------------------------------------------------------------------
# Installation

# Installs the packages of a tool or program; prints the reason if it cannot.
install_missing() {
	local command package missing=()
	while read -r command package; do
		if [[ $command == */* ]]; then
			[[ -e $command ]] || missing+=("$package")
		else
			command -v "$command" >/dev/null || missing+=("$package")
		fi
	done < <("needs_$1")
	((${#missing[@]})) || return 0
	if ((!install)) || [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
		say "${missing[*]} is not installed"
		return 1
	fi
	if [[ ! -e $WORK/apt.log ]]; then
		apt-get update -qq >"$WORK/apt.log" 2>&1 || true
	fi
	# RUNLEVEL keeps a server from being started at its installation.
	DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
		apt-get install -y -qq --no-install-recommends "${missing[@]}" >>"$WORK/apt.log" 2>&1 || {
		say "apt-get cannot install ${missing[*]}"
		return 1
	}
}

# Installs memray for the system's interpreter; prints the reason if it cannot.
install_memray() {
	[[ ! -x $VENV/bin/memray ]] || return 0
	if ((!install)); then
		say "memray is not installed"
		return 1
	fi
	install_missing memray || return 1
	{ /usr/bin/python3 -m venv "$VENV" && "$VENV/bin/pip" install -q memray; } \
		>"$WORK/pip.log" 2>&1 || {
		say "pip cannot install memray"
		return 1
	}
}

# Prints the path of a library that the dynamic linker knows.
linked_library() {
	PATH=$PATH:/usr/sbin:/sbin ldconfig -p | awk -v name="$1" '$1 == name { path = $NF }
		END { print path }'
}

# Prints the reason if a tool's library cannot make a profile.
assert_profiles() {
	local output
	case $1 in
	jeprof)
		output=$(LD_PRELOAD=$(linked_library libjemalloc.so.2) MALLOC_CONF=stats_print:true \
			/bin/true 2>&1) || true
		[[ $output == *"config.prof: true"* ]] || {
			say "libjemalloc was built without profiles"
			return 1
		}
		;;
	gperftools)
		[[ -n $(linked_library libtcmalloc.so.4) ]] || {
			say "there is no libtcmalloc"
			return 1
		}
		;;
	esac
}

install_tool() {
	if [[ $1 == memray ]]; then
		install_memray
	else
		install_missing "$1" && assert_profiles "$1"
	fi
}

# --------------------------------------------------------------------------------------------------
# Runs

# Runs a program once under a tool, or `plain`. Leaves its files in HERE, and its seconds in TAKEN:
# those of the load if it is a server. Fails as the program does.
run_once() {
	local tool=$1 code=0 loaded=0
	HERE=$WORK/$PROGRAM.$tool
	rm -rf "$HERE"
	mkdir "$HERE"
	TYPED=("${COMMAND[@]}")
	[[ $tool == plain ]] || "launch_$tool"
	say "${TYPED[*]@Q}" >"$HERE/steps"
	STARTED=$(date +%s%N)
	if declare -F "drive_$PROGRAM" >/dev/null; then
		timeout -k 10 "$LIMIT" "${TYPED[@]}" >"$HERE/out" 2>"$HERE/err" </dev/null &
		server=$!
		"drive_$PROGRAM" "$server" || loaded=$?
		((loaded == 0)) || kill "$server" 2>/dev/null || true
		wait "$server" || code=$?
		server=
		((loaded == 0)) || code=$loaded
	else
		timeout -k 10 "$LIMIT" "${TYPED[@]}" >"$HERE/out" 2>"$HERE/err" </dev/null || code=$?
		ENDED=$(date +%s%N)
	fi
	TAKEN=$(awk "BEGIN { printf \"%.3f\", ($ENDED - $STARTED) / 1e9 }")
	return "$code"
}

# Compares the first row of an answer, and then its callers, with the place of the program.
judge() {
	local rows=$1 first callers up
	first=$(sed -n 1p "$rows")
	if grep -qE -- "$LINE" <<<"$first"; then
		say yes
	elif grep -qE -- "$FUNCTION" <<<"$first"; then
		say "function only"
	else
		callers=$(sed 1d "$rows" | grep -nE -m 1 -- "$LINE|$FUNCTION" || true)
		up=${callers:+, ${callers%%:*} up}
		if grep -qE -- "$WRAPPER" <<<"$first"; then
			say "wrapper$up"
		else
			say "no$up"
		fi
	fi
}

median() {
	sort -n | awk '{ value[NR] = $1 }
		END { print (value[int((NR + 1) / 2)] + value[int((NR + 2) / 2)]) / 2 }'
}

# Prints a row of the table: program, tool, commands, own line, time, first row.
row() {
	if ((markdown)); then
		local cell=${6//|/\\|}
		printf '| %s | %s | %s | %s | %s | %s |\n' "$1" "$2" "$3" "$4" "$5" "${cell:+\`$cell\`}"
	else
		printf '%-9s %-11s %8s  %-14s %9s  %s\n' "$@"
	fi
}

# Notes how the first run under a tool went: commands, verdict and first row.
note_answer() {
	local tool=$1 code=$2 rows=$HERE/rows
	if ((code == 124 || code == 137)); then
		answers[$tool]="-|no|ended after $LIMIT s"
		return
	elif ((code != 0)); then
		answers[$tool]="-|no|ended with $code"
		return
	fi
	"show_$tool" >"$rows" 2>>"$HERE/err" || true
	sed -E -i -e 's/[[:space:]]+/ /g; s/^ //; s/ $//; s|/rustc/[0-9a-f]+/||g' \
		-e "s|$repository/||g; s|$WORK/||g" "$rows"
	answers[$tool]="$(wc -l <"$HERE/steps")|$(judge "$rows")|$(head -n 1 "$rows" | cut -c 1-100)"
}

try_program() {
	local tool run code factor
	local -A answers=() times=() failed=()
	PROGRAM=$1
	"prepare_$PROGRAM"
	for ((run = 1; run <= runs; run++)); do
		run_once plain || {
			not_run "trial.sh $PROGRAM" "it ends with $? without a tool, too"
			return 0
		}
		times[plain]+="$TAKEN "
		for tool in "${tools[@]}"; do
			[[ $tool != memray || $PROGRAM == python ]] || continue
			[[ -z ${failed[$tool]-} ]] || continue
			((run == 1)) || [[ " ${SLOW_TOOLS[*]} " != *" $tool "* ]] || continue
			code=0
			run_once "$tool" || code=$?
			((code == 0)) || failed[$tool]=1
			times[$tool]+="$TAKEN "
			((run > 1)) || note_answer "$tool" "$code"
			say "$PROGRAM, $tool: $TAKEN s" >&2
		done
	done
	plain=$(tr ' ' '\n' <<<"${times[plain]% }" | median)
	row "$PROGRAM" plain "" "" "$(printf '%.2f s' "$plain")" ""
	for tool in "${tools[@]}"; do
		[[ -n ${answers[$tool]-} ]] || continue
		factor=$(tr ' ' '\n' <<<"${times[$tool]% }" | median |
			awk -v plain="$plain" '{ f = $1 / plain; printf(f < 10 ? "%.2f" : "%.0f", f) }')
		[[ -z ${failed[$tool]-} ]] || factor=-
		IFS='|' read -r commands verdict first <<<"${answers[$tool]}"
		row "$PROGRAM" "$tool" "$commands" "$verdict" "$factor" "$first"
		[[ $verdict == yes || $verdict == "function only" ]] || misses=$((misses + 1))
	done
}

VENV=$target/trial-memray
tools=()
for tool in "${chosen_tools[@]}"; do
	if reason=$(install_tool "$tool"); then
		tools+=("$tool")
	else
		not_run "trial.sh $tool" "$reason"
	fi
done
JEMALLOC=$(linked_library libjemalloc.so.2)
TCMALLOC=$(linked_library libtcmalloc.so.4)

processor=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
say "$(nproc) CPUs: ${processor:-$(uname -m)}; median of $runs runs; one run: ${SLOW_TOOLS[*]}"
((!markdown)) || say
if ((markdown)); then
	say "| program | tool | commands | own line | time | first row |"
	say "|---|---|--:|---|--:|---|"
else
	row program tool commands "own line" time "first row"
fi
misses=0
for program in "${chosen_programs[@]}"; do
	if reason=$(install_missing "$program"); then
		try_program "$program"
	else
		not_run "trial.sh $program" "$reason"
	fi
done
if ((check)); then
	say "$misses first rows name neither the line nor the function"
	((misses == 0))
fi
