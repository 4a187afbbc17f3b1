#!/usr/bin/env bash
#
# Measures what lines of Python cost, beside tracemalloc and memray. The programs are small ones
# with json, pickle, re and asyncio. Prints tables of wall time, and of the most resident memory.
#
# usage: python-costs.sh [--library PATH] [--python PATH] [--runs N] [--rounds N]
#
#     --library PATH  the library (default: target/release/libkmem.so of this repository)
#     --python PATH   the interpreter (default: /usr/bin/python3)
#     --runs N        runs of each program in each way, in turn (default: 11)
#     --rounds N      rounds of work in each run (default: 100)
#
# pip gets memray from PyPI into target/python-costs. Without it, its rows are missing. Figures of a
# machine with other work are of no use: the first line has its load.

set -euo pipefail

repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
readonly repository
. "$repository/scripts/not-run.sh"
. "$repository/scripts/options.sh"

library=
python=/usr/bin/python3
runs=11
rounds=100
read_options 'library python runs rounds' "$@"
find_library

# A directory for each version, as memray has machine code for it.
version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
venv=$repository/target/python-costs/$version
if [[ ! -x $venv/bin/pip ]] && ! "$python" -m venv "$venv" >/dev/null 2>&1; then
	not_run python-costs "$python -m venv fails"
	exit 0
fi
"$venv/bin/python" -c 'import memray' 2>/dev/null ||
	"$venv/bin/pip" install -q memray >/dev/null 2>&1 ||
	not_run python-costs::memray "pip cannot install memray"
exec "$venv/bin/python" "$repository/scripts/python-costs/measure.py" "$venv/bin/python" \
	"$library" "$runs" "$rounds"
