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

die() {
	printf 'python-libraries: %s\n' "$*" >&2
	exit 2
}

library=
kmem=
python=/usr/bin/python3
while (($#)); do
	case $1 in
	--library | --kmem | --python)
		(($# > 1)) || die "$1 needs a path"
		declare "${1#--}=$2"
		shift
		;;
	-h | --help)
		sed -n '3,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
		exit 0
		;;
	*) die "unknown option $1" ;;
	esac
	shift
done
library=$(readlink -f "${library:-$repository/target/release/libkmem.so}")
kmem=$(readlink -f "${kmem:-$(dirname "$library")/kmem}")
[[ -f $library && -x $kmem ]] || die "$library or $kmem does not exist; cargo build --release"

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
