#!/usr/bin/env bash
#
# Installs the Python package of python/ into a new virtual environment. Runs the package's tests
# there under the library, and the examples of docs/python-package.md with them.
#
# usage: python-package.sh [--library PATH] [--kmem PATH] [--python PATH]
#
#     --library PATH  the library (default: target/release/libkmem.so of this repository)
#     --kmem PATH     the command (default: kmem beside the library)
#     --python PATH   the interpreter (default: python3)
#
# Needs venv and pip, which gets setuptools, pytest and IPython from PyPI. Without these the tests
# are not run. Without IPython alone, its test is not run.

set -euo pipefail

repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
readonly repository
. "$repository/scripts/not-run.sh"
. "$repository/scripts/options.sh"

library=
kmem=
python=python3
read_options 'library kmem python' "$@"
find_library
find_command

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! "$python" -m venv "$work/venv" >"$work/log" 2>&1; then
	not_run python-package "$python -m venv fails: $(tail -n 1 "$work/log")"
	exit 0
fi
# A build writes beside the sources.
cp -r "$repository/python" "$work/python"
install() { "$work/venv/bin/python" -m pip install --quiet "$@" >"$work/log" 2>&1; }
tools=(--upgrade setuptools wheel pytest)
if ! install "${tools[@]}" ipython; then
	if ! install "${tools[@]}"; then
		not_run python-package "pip install fails: $(tail -n 1 "$work/log")"
		exit 0
	fi
	not_run python-package::ipython "pip install ipython fails"
fi
install --no-build-isolation "$work/python" || die "pip install fails: $(cat "$work/log")"

cd "$work"
unset PYTHONPATH
export PYTHONDONTWRITEBYTECODE=1 KMEM=$kmem
PYTHONMALLOC=malloc LD_PRELOAD=$library "$work/venv/bin/python" -m pytest -q \
	-p no:cacheprovider "$repository/python/tests"
