#!/usr/bin/env bash
#
# Builds real C programs from source with `-include kmem/hooks.h`, and runs a workload in each
# without and with libkmem.so. At the end of the workload the script checks the books. Each live
# byte must belong to a line of the program's own sources, or to the C library. The sum must be the
# allocator's own count (mallinfo2).
#
# usage: hooked-programs.sh [--quick] [--library PATH] [--kmem PATH] [--keep] [--list] [NAME...]
#
#     --quick         smaller workloads, done within a minute
#     --library PATH  the library (default: target/release/libkmem.so of this repository)
#     --kmem PATH     the command (default: kmem beside the library)
#     --keep          keep the working directory
#     --list          print the names of the programs and exit
#     NAME...         only these programs
#
# The sources are fetched from crates.io, in fixed versions with fixed checksums; HOOKED_SOURCES
# names a directory with the archives instead. Needs a C compiler, curl and python3. The last line
# is "N passed, M failed"; the exit code is 0 if nothing failed.

set -euo pipefail

readonly ALL_PROGRAMS=(lua sqlite zlib)

script=$(readlink -f "${BASH_SOURCE[0]}")
repository=$(dirname "$(dirname "$script")")
readonly script repository

die() {
	printf 'hooked-programs: %s\n' "$*" >&2
	exit 2
}

QUICK=0
keep=0
library=
kmem=
names=()
while (($#)); do
	case $1 in
	--quick) QUICK=1 ;;
	--keep) keep=1 ;;
	--list)
		printf '%s\n' "${ALL_PROGRAMS[@]}"
		exit 0
		;;
	--library | --kmem)
		(($# > 1)) || die "$1 needs a path"
		if [[ $1 == --kmem ]]; then kmem=$2; else library=$2; fi
		shift
		;;
	-h | --help)
		sed -n '3,19s/^# \{0,1\}//p' "$script"
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

library=${library:-${CARGO_TARGET_DIR:-$repository/target}/release/libkmem.so}
[[ -f $library ]] || die "no $library: build it with 'cargo build --release', or give --library"
library=$(readlink -f "$library")
kmem=${kmem:-$(dirname "$library")/kmem}
[[ -x $kmem ]] || die "no $kmem: build it with 'cargo build --release', or give --kmem"
for tool in cc python3 curl; do
	command -v "$tool" >/dev/null || die "$tool is not installed"
done

WORK=$(mktemp -d /tmp/hooked-programs.XXXXXX)
finish() {
	if ((keep)); then printf 'kept %s\n' "$WORK"; else rm -rf "$WORK"; fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
unset LD_PRELOAD KMEM_CONF GLIBC_TUNABLES

# Unpacks a crate into WORK: name, version, checksum.
fetch() {
	local name="$1-$2" archive
	archive="${HOOKED_SOURCES:-$WORK}/$name.crate"
	[[ -f $archive ]] ||
		curl -sSfL --retry 3 -o "$archive" "https://static.crates.io/crates/$1/$name.crate"
	printf '%s  %s\n' "$3" "$archive" | sha256sum --check --quiet --strict
	tar -xzf "$archive" -C "$WORK"
}

# Compiles sources of the current directory with hooks, one by one so that their names are short.
# Warnings are off, but for those of what hooks.h might break.
hooked() {
	local output=$1 file
	shift
	for file in "$@"; do
		cc -O1 -g -w -Werror=implicit-function-declaration -Werror=int-conversion \
			-Werror=incompatible-pointer-types -include "$repository/include/kmem/hooks.h" \
			-DQUICK="$QUICK" "${flags[@]}" -c "$file" -o "$output.$(basename "$file").o"
	done
	cc "$output".*.o -o "$output" -lm -ldl -pthread
}

# The end of every workload: the allocator's own count, then a pause in which check.py reads the
# books. Then everything goes at once, with the process.
driver() {
	cat - >driver_main.c <<'C'
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void workload(void);

int main(void)
{
	char line[100], answer;
	int length;
	struct mallinfo2 books;
	workload();
	fflush(stdout);
	books = mallinfo2();
	length = snprintf(line, sizeof(line), "mallinfo2 %zu\n", books.uordblks + books.hblkhd);
	if (write(1, line, length) != length)
		return 1;
	if (read(0, &answer, 1) < 0)
		return 1;
	_exit(0);
}
C
}

build_lua() {
	fetch lua-src 547.0.0 1edaf29e3517b49b8b746701e5648ccb5785cde1c119062cbabbc5d5cd115e42
	cd "$WORK/lua-src-547.0.0/lua-5.4.7"
	driver
	cat >driver_lua.c <<'C'
#include "lua.h"
#include "lauxlib.h"
#include "lualib.h"
#include <stdio.h>
#include <stdlib.h>

void workload(void)
{
	lua_State *L = luaL_newstate();
	luaL_openlibs(L);
	lua_pushinteger(L, QUICK ? 2000 : 100000);
	lua_setglobal(L, "n");
	if (luaL_dostring(L,
			  "t, s = {}, {}\n"
			  "for i = 1, n do\n"
			  "  t[i] = { id = i, name = 'name ' .. i, list = { i, i + 1, i + 2 } }\n"
			  "  s[#s + 1] = string.rep('x', i % 300)\n"
			  "  if i % 3 == 0 then t[i - 1] = nil end\n"
			  "end\n"
			  "big = table.concat(s)\n"
			  "co = coroutine.wrap(function() for k in pairs(t) do coroutine.yield(k) end end)\n"
			  "co()\n"
			  "table.sort(s)\n"
			  "print(#big, #s, s[1000])\n")) {
		fprintf(stderr, "%s\n", lua_tostring(L, -1));
		exit(1);
	}
}
C
	flags=(-DLUA_USE_POSIX -DLUA_USE_DLOPEN)
	hooked "$WORK/lua" ./*.c
}

build_sqlite() {
	fetch libsqlite3-sys 0.30.1 2e99fb7a497b1e3339bc746195567ed8d3e24945ecd636e3619d20b9de9e9149
	cd "$WORK/libsqlite3-sys-0.30.1/sqlite3"
	driver
	cat >driver_sqlite.c <<'C'
#include "sqlite3.h"
#include <stdio.h>
#include <stdlib.h>

static void run(sqlite3 *db, const char *sql)
{
	char *why;
	if (sqlite3_exec(db, sql, NULL, NULL, &why)) {
		fprintf(stderr, "%s: %s\n", sql, why);
		exit(1);
	}
}

void workload(void)
{
	sqlite3 *db;
	sqlite3_stmt *insert, *select;
	int i;
	if (sqlite3_open(":memory:", &db))
		exit(1);
	run(db, "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, value REAL)");
	run(db, "BEGIN");
	sqlite3_prepare_v2(db,
			   "INSERT INTO t (name, value)"
			   " VALUES (printf('name %d', ?1 * 7919 % 10007), ?1)",
			   -1, &insert, NULL);
	for (i = 0; i < (QUICK ? 5000 : 200000); i++) {
		sqlite3_bind_int(insert, 1, i);
		if (sqlite3_step(insert) != SQLITE_DONE)
			exit(1);
		sqlite3_reset(insert);
	}
	run(db, "COMMIT");
	run(db, "CREATE INDEX by_name ON t (name)");
	/* Left in the middle. */
	sqlite3_prepare_v2(db,
			   "SELECT name, count(*), sum(value) FROM t"
			   " GROUP BY name ORDER BY 3 DESC",
			   -1, &select, NULL);
	for (i = 0; i < 5 && sqlite3_step(select) == SQLITE_ROW; i++)
		printf("%s %d %.0f\n", sqlite3_column_text(select, 0), sqlite3_column_int(select, 1),
		       sqlite3_column_double(select, 2));
}
C
	flags=(-DSQLITE_THREADSAFE=1 -DSQLITE_ENABLE_FTS5 -DSQLITE_ENABLE_RTREE)
	hooked "$WORK/sqlite" sqlite3.c driver_main.c driver_sqlite.c
}

build_zlib() {
	fetch libz-sys 1.1.20 d2d16453e800a8cf6dd2fc3eb4bc99b786a9b90c663b8559a5b1a041bf89e472
	cd "$WORK/libz-sys-1.1.20/src/zlib"
	driver
	cat >driver_zlib.c <<'C'
#include "zlib.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void workload(void)
{
	int states = QUICK ? 5 : 50, size = QUICK ? 20000 : 1000000, i, j;
	unsigned long sum = 0;
	char *text = malloc(size);
	gzFile file = gzopen("/dev/null", "wb");
	for (i = 0; i < size; i++)
		text[i] = "the quick brown fox "[(i * 7 + i / 100) % 20];
	gzwrite(file, text, size);
	for (i = 0; i < states; i++) {
		z_stream *in = calloc(1, sizeof(*in)), *out = calloc(1, sizeof(*out));
		unsigned char *packed = malloc(compressBound(size)), *back = malloc(size);
		deflateInit(in, i % 9 + 1);
		in->next_in = (unsigned char *)text;
		in->avail_in = size;
		in->next_out = packed;
		in->avail_out = compressBound(size);
		deflate(in, Z_FINISH);
		inflateInit(out);
		out->next_in = packed;
		out->avail_in = in->total_out;
		out->next_out = back;
		out->avail_out = size;
		/* Not to the end. */
		for (j = 0; j < 10; j++)
			inflate(out, Z_SYNC_FLUSH);
		if (memcmp(text, back, out->total_out))
			exit(1);
		sum += in->total_out + out->total_out;
		free(back);
		packed = realloc(packed, in->total_out);
	}
	printf("%lu\n", sum);
}
C
	flags=(-DZ_HAVE_UNISTD_H -D_LARGEFILE64_SOURCE=1)
	hooked "$WORK/zlib" ./*.c
}

# Runs a program under the library, reads its books while it waits, and compares.
cat >"$WORK/check.py" <<'PY'
import collections, json, os, subprocess, sys

program, sources, library, kmem, plain = sys.argv[1:]
own = set(os.listdir(sources))
run = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                       env=dict(os.environ, LD_PRELOAD=library))
said = []
for line in run.stdout:
    if line.startswith("mallinfo2 "):
        counted = int(line.split()[1])
        break
    said.append(line)
else:
    sys.exit("it ended early: %r" % said)
read = [kmem, "dump", "--json", "--no-mmap", "-p", str(run.pid)]
dump = json.loads(subprocess.check_output(read, stderr=subprocess.PIPE))
run.stdin.close()
problems = []
if run.wait() != 0:
    problems.append("exit code %d" % run.returncode)
if "".join(said) != open(plain).read():
    problems.append("different output: %r" % said)
lines, libc, calls = collections.Counter(), 0, 0
for row in dump["rows"]:
    file = os.path.basename(row["file"] or "")
    # The row of memory of the C library is that of the program's call, where that is known.
    innermost = row["chains"][0]["frames"][0] if row.get("chains") else row
    if row["kind"] == "static" and file in own:
        lines["%s:%d %s" % (file, row["line"], row["function"])] += row["bytes"]
        calls += row["calls"]
    elif (innermost["module"] or "").startswith(("libc.so", "ld-linux")):
        libc += row["bytes"]
    else:
        problems.append("not attributed: %s" % json.dumps(row))
total = sum(lines.values()) + libc
tracked = dump["accounting"]["tracked"]
if not total == tracked == counted:
    problems.append("rows hold %d bytes, tracked are %d, mallinfo2 counts %d" %
                    (total, tracked, counted))
if not lines:
    problems.append("no row of the program's own")
print("    %d bytes in %d objects of %d lines, and %d bytes of the C library = mallinfo2" %
      (sum(lines.values()), calls, len(lines), libc))
for place, held in lines.most_common(4):
    print("    %5.1f %%  %s" % (100 * held / total, place))
for problem in problems:
    print("    PROBLEM: " + problem)
sys.exit(bool(problems))
PY

passed=0
failed=0
for name in "${names[@]}"; do
	report="$WORK/$name.report"
	if (
		set -e
		"build_$name"
		pwd >"$WORK/$name.sources"
		"$WORK/$name" </dev/null 2>/dev/null | grep -v '^mallinfo2 ' >"$WORK/$name.plain"
	) >"$report" 2>&1 &&
		python3 "$WORK/check.py" "$WORK/$name" "$(<"$WORK/$name.sources")" "$library" "$kmem" \
			"$WORK/$name.plain" >>"$report" 2>&1; then
		passed=$((passed + 1))
		printf '%-8s ok\n' "$name"
	else
		failed=$((failed + 1))
		printf '%-8s FAIL\n' "$name"
	fi
	cat "$report"
done
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
