#!/usr/bin/env bash
#
# Builds a tokio program in several ways, with kmem as its global allocator. Builds it with the
# allocator of the system, too, and runs that under `kmem run`. Checks that the program's own lines
# hold the memory that its code allocates. No row may be of kmem, of Rust's libraries below std, or
# of the functions between the two.
#
# usage: tokio-program.sh [--library PATH] [--kmem PATH] [NAME...]
#
#     --library PATH  the library (default: target/release/libkmem.so of this repository)
#     --kmem PATH     the command (default: kmem beside the library)
#     NAME...         only these: off, thin, fat, one, preloaded
#
# Needs cargo, python3 and nm; tokio comes from crates.io. The last line is "N passed, M failed";
# the exit code is 0 if nothing failed.

set -euo pipefail

repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
readonly repository
. "$repository/scripts/options.sh"

library=
kmem=
read_options 'library kmem ...' "$@"
choose off thin fat one preloaded
find_library
find_command

work=$repository/target/tokio-program
mkdir -p "$work/src"
# Versions are those of the workspace, where it has the crate.
cp "$repository/Cargo.lock" "$work/Cargo.lock"
cp "$repository/scripts/tokio-program.rs" "$work/src/main.rs"
cat >"$work/Cargo.toml" <<TOML
[package]
name = "sessions"
version = "0.1.0"
edition = "2024"

[features]
kmem = ["dep:kmem-core"]

[dependencies]
kmem-core = { path = "$repository/crates/kmem-core", optional = true }

[dependencies.tokio]
version = "=1.54.1"
default-features = false
features = ["rt-multi-thread", "sync", "time"]

# The kinds of debug information differ, too.
[profile.off]
inherits = "release"
lto = "off"
debug = "line-tables-only"

[profile.thin]
inherits = "release"
lto = "thin"
debug = 1

[profile.fat]
inherits = "release"
lto = "fat"
debug = true

[profile.one]
inherits = "release"
lto = "fat"
codegen-units = 1
panic = "abort"
debug = false

[workspace]
TOML

# Ends the program that a failed check has left.
program=
trap '[[ -z $program ]] || kill "$program" 2>/dev/null || true' EXIT

# Builds a variant, runs it until it waits, reads it from outside, and lets it end.
try() {
	local name=$1 profile=$1 features=(--features kmem) command=()
	if [[ $name == preloaded ]]; then
		profile=fat
		features=()
		command=("$kmem" run --library "$library" -o "$work/report.txt" --)
	fi
	local built=$work/$name
	(cd "$work" && cargo build --quiet --profile "$profile" --target-dir "$built" \
		"${features[@]}") || return 1
	local executable=$built/$profile/sessions
	rm -f "$work/input" "$work/output"
	mkfifo "$work/input" "$work/output"
	env -u LD_PRELOAD -u KMEM_CONF "${command[@]}" "$executable" <"$work/input" >"$work/output" &
	program=$!
	local input output line pid= said=
	exec {input}>"$work/input" {output}<"$work/output"
	while read -r line <&"$output"; do
		said+=$line$'\n'
		if [[ $line == ready* ]]; then
			pid=${line#ready }
			break
		fi
	done
	[[ -n $pid ]] || return 1
	"$kmem" dump --no-mmap --json -p "$pid" >"$work/$name.json" || return 1
	exec {input}>&-
	cat <&"$output" >/dev/null
	exec {output}<&-
	wait "$program" || return 1
	program=
	printf '%s' "$said" >"$work/$name.said"
	python3 - "$work/src/main.rs" "$work/$name.json" "$work/$name.said" "$executable" "$name" \
		<<'PYTHON'
import bisect, json, re, subprocess, sys

source, rows, said, executable, name = sys.argv[1:]
rows = [row for row in json.load(open(rows))["rows"] if row["bytes"]]
# Of kmem, of Rust's libraries below std, and of the functions between them.
foreign = re.compile(r"^<?&?(mut )?(kmem_\w+|alloc|core|hashbrown|__rustc|__rdl|__rg)::"
                     r"|__rust_(alloc|realloc|no_alloc)|GlobalAlloc|^(alloc|alloc_zeroed|realloc)$")
paths = re.compile(r"/kmem-|/rustc/\w+/library/(alloc|core)/|/hashbrown-")
failed = []

for row in rows:
    if foreign.search(row["function"] or "") or paths.search(row["file"] or ""):
        failed.append(f"{row['bytes']} bytes of {row['function']} {row['file']}:{row['line']}")

# The lines of the program; without debug information its functions, by their last name.
wanted, function = {}, None
for number, line in enumerate(open(source), 1):
    if found := re.match(r"(?:async )?fn (\w+)", line):
        function = found[1]
    if found := re.search(r"// holds (\d+) (\d+)$", line.rstrip()):
        wanted[number, function] = int(found[1]), int(found[2])
own = 0
for (line, function), (objects, size) in wanted.items():
    if name == "one":
        if function == "run":
            continue  # It is inlined in tokio's function.
        held = [row for row in rows if re.search(rf"\b{function}\b", row["function"] or "")]
    else:
        held = [row for row in rows if row["line"] == line and row["file"].endswith("src/main.rs")]
    count, total = sum(row["calls"] for row in held), sum(row["bytes"] for row in held)
    own += total
    if count < objects or not size <= total <= 2 * size:
        failed.append(f"{function}, line {line}: {total} bytes in {count} objects, "
                      f"not {size} in {objects}")
every = sum(row["bytes"] for row in rows)
if own < 0.9 * every:
    failed.append(f"{own} of {every} bytes are those of the program's lines")

# The process itself says the address of each site. The symbol table has its function.
symbols = []
for line in subprocess.run(["nm", "-C", executable], stdout=subprocess.PIPE, text=True,
                           check=True).stdout.splitlines():
    if found := re.match(r"([0-9a-f]+) (\w) (.*)", line):
        symbols.append((int(found[1], 16), found[2], found[3]))
anchor = next(at for at, _, symbol in symbols if symbol == "ANCHOR")
code = sorted((at, symbol) for at, kind, symbol in symbols if kind in "tTwW")
for line in open(said):
    word, *numbers = line.split()
    if word == "anchor":
        base = int(numbers[0]) - anchor
    elif word == "site" and int(numbers[1]):
        at = bisect.bisect(code, (int(numbers[1]) - 1 - base, "\x7f")) - 1
        if at >= 0 and foreign.search(code[at][1]):
            failed.append(f"in the process, {numbers[0]} bytes of {code[at][1]}")

for line in failed:
    print(f"{name}: {line}")
print(f"{name}: {100 * own // every} % of {every} bytes are those of the program's own lines")
sys.exit(bool(failed))
PYTHON
}

passed=0
failed=0
for name in "${words[@]}"; do
	if try "$name"; then
		passed=$((passed + 1))
	else
		printf '%s failed\n' "$name"
		failed=$((failed + 1))
		[[ -z $program ]] || kill "$program" 2>/dev/null || true
		program=
	fi
done
printf '%s passed, %s failed\n' "$passed" "$failed"
((failed == 0))
