#!/usr/bin/env bash
#
# Runs numpy, pandas and pyarrow under the library. Checks that their buffers belong to the lines of
# Python that asked for them. pyarrow runs with each of its pools.
#
# usage: python-libraries.sh [--library PATH] [--kmem PATH] [--python PATH]
#
#     --library PATH  the library (default: target/release/libkmem.so of this repository)
#     --kmem PATH     the command (default: kmem beside the library)
#     --python PATH   the interpreter (default: /usr/bin/python3)
#
# pip gets the three from PyPI, once, into target/python-libraries. What it cannot get is not run.

set -euo pipefail

repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
readonly repository
. "$repository/scripts/not-run.sh"
. "$repository/scripts/options.sh"

library=
kmem=
python=/usr/bin/python3
read_options 'library kmem python' "$@"
find_library
find_command

venv=$repository/target/python-libraries/venv
if [[ ! -x $venv/bin/pip ]] && ! "$python" -m venv "$venv" >/dev/null 2>&1; then
	not_run python-libraries "$python -m venv fails"
	exit 0
fi

# Seconds for each run.
readonly PATIENCE=120
failed=0

# run NAME POOL
run() {
	local name=$1 pool=$2 code=0
	ARROW_DEFAULT_MEMORY_POOL=$pool PYTHONMALLOC=malloc LD_PRELOAD=$library timeout "$PATIENCE" \
		"$venv/bin/python" "$repository/scripts/python-libraries/holds.py" "$name" "$kmem" "$pool" ||
		code=$?
	if ((code == 0)); then
		printf '%-8s %-9s ok\n' "$name" "${pool:--}"
	else
		printf '%-8s %-9s FAIL (%s)\n' "$name" "${pool:--}" "$code"
		failed=$((failed + 1))
	fi
}

for name in numpy pandas pyarrow; do
	if ! "$venv/bin/python" -c "import $name" 2>/dev/null &&
		! timeout "$PATIENCE" "$venv/bin/pip" install -q "$name" >/dev/null 2>&1; then
		not_run "python-libraries.sh $name" "pip cannot install it"
		continue
	fi
	if [[ $name != pyarrow ]]; then
		run "$name" ''
		continue
	fi
	pools=$("$venv/bin/python" -c 'import pyarrow; print(*pyarrow.supported_memory_backends())')
	for pool in $pools; do
		run pyarrow "$pool"
	done
done
((failed == 0))
