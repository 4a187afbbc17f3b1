#!/usr/bin/env bash
# Installs kmem with make into a directory of its own, builds the examples against it by pkg-config
# and by CMake, runs them, and removes it. Nothing of kmem may be left, and no foreign file be gone.
#
#   scripts/installed.sh [--debian]
#
# --debian also builds the Debian packages, and installs and purges them in a clean system that
# debootstrap makes. This needs root and takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/not-run.sh

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
usr=$root/usr

fail() {
  echo "$*" >&2
  exit 1
}

# Fails unless a program says that kmem refused.
refuses() {
  local said
  said=$("$@" 2>"$root/stderr") || fail "$1: ended with $?: $(cat "$root/stderr")"
  [ "$said" = refused ] || fail "$1 said: $said"
}

files() {
  (cd "$1" && find . \( -type f -o -type l \) | sort)
}

examples() {
  local flags
  flags=$(PKG_CONFIG_PATH=$usr/lib/pkgconfig pkg-config --cflags --libs kmem)
  # shellcheck disable=SC2086
  cc -Wall -Werror examples/installed/tenant.c -o "$root/tenant" $flags
  # shellcheck disable=SC2086
  c++ -Wall -Werror -std=c++17 examples/installed/tenant.cpp -o "$root/tenant_cpp" $flags
  # shellcheck disable=SC2086
  c++ -Wall -Werror -std=c++17 examples/installed/rows.cpp -o "$root/rows" $flags
  for example in tenant tenant_cpp rows; do
    LD_LIBRARY_PATH=$usr/lib refuses "$root/$example"
  done
  cmake -S examples/installed -B "$root/cmake" -DCMAKE_PREFIX_PATH="$usr" >/dev/null
  cmake --build "$root/cmake" >/dev/null
  for example in tenant tenant_cpp rows tenant_static; do
    refuses "$root/cmake/$example"
  done
}

# The installed command uses the installed library, and reads a static program, too.
command_works() {
  local kmem=$usr/bin/kmem
  [ "$("$kmem" library)" = "$(readlink -f "$usr/lib/libkmem.so")" ] ||
    fail "not the installed library"
  cc -g -o "$root/orders" examples/orders.c
  "$kmem" run -- "$root/orders" 2>"$root/report"
  grep -q 'render .*examples/orders.c:21' "$root/report" || fail "$(cat "$root/report")"
  cc -g -static -o "$root/orders_static" examples/orders.c "$usr/lib/libkmem.a"
  KMEM_CONF=blackbox:$root/box "$root/orders_static" >/dev/null
  "$kmem" dump --blackbox "$root/box" >"$root/rows"
  grep -q 'orders.c:21 func:render' "$root/rows" || fail "$(cat "$root/rows")"
}

# The limits are a twentieth above what the library has, and the goal for the command.
sizes() {
  local library command
  library=$(($(stat -Lc %s "$usr/lib/libkmem.so") >> 10))
  command=$(($(stat -c %s "$usr/bin/kmem") >> 10))
  echo "libkmem.so $library KiB, kmem $command KiB with the library inside"
  ((library <= 832)) || fail "libkmem.so has $library KiB, more than 832"
  ((command <= 8192)) || fail "kmem has $command KiB, more than 8192"
}

make --silent
make --silent install PREFIX="$usr"
touch "$usr/include/kmem/foreign.h" "$usr/share/man/man1/kmem-foreign.1"
make --silent install PREFIX=/opt/kmem LIBDIR=/opt/kmem/lib/multiarch DESTDIR="$root/destdir"
[ -e "$root/destdir/opt/kmem/bin/kmem" ] || fail "DESTDIR was not used"
grep -q "^libdir=/opt/kmem/lib/multiarch$" "$root/destdir/opt/kmem/lib/multiarch/pkgconfig/kmem.pc"
examples
command_works
sizes
make --silent uninstall PREFIX="$usr"
left=$(files "$usr")
[ "$left" = $'./include/kmem/foreign.h\n./share/man/man1/kmem-foreign.1' ] ||
  fail "left after uninstall, beside two foreign files: $left"
if [[ ${1-} == --debian ]]; then
  packaging/debian/test.sh
fi
echo "installed, used and removed"
