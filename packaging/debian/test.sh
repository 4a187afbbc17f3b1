#!/usr/bin/env bash
# Builds the Debian packages, installs them in a clean system, uses them as a user would, purges
# them, and checks that no file is left. Needs root, debootstrap and a mirror of Debian.
#
#   packaging/debian/test.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
  echo "$*" >&2
  exit 1
}

command -v debootstrap >/dev/null || PATH=$PATH:/usr/sbin
system=$(mktemp -d)
leave() {
  umount "$system/proc" 2>/dev/null || true
  rm -rf --one-file-system "$system"
}
trap leave EXIT

release=$(. /etc/os-release && echo "$VERSION_CODENAME")
tools=gcc,libc6-dev,pkg-config
debootstrap --variant=minbase --include=$tools "$release" "$system" >"$system.log" ||
  fail "debootstrap failed: $(tail -n 3 "$system.log")"
rm -f "$system.log"
mount -t proc proc "$system/proc"

files() {
  (cd "$system" && find . -xdev \( -path ./proc -o -path ./var/lib/dpkg -o -path ./var/log \
    -o -path ./var/cache/ldconfig -o -path ./etc/ld.so.cache -o -path ./root \) -prune \
    -o -print | sort)
}

before=$(files)
packages=$(packaging/debian/build.sh "$system/root")
for package in $packages; do
  printf '%s %s KiB\n' "$(basename "$package")" $(($(stat -c %s "$package") >> 10))
done
cp examples/orders.c examples/installed/tenant.c "$system/root/"
chroot "$system" sh -eu <<'INSIDE' || fail "the packages do not work"
cd /root
dpkg -i ./*.deb >/dev/null
cc -g orders.c -o orders
kmem run -- ./orders 2>report
grep -q 'render .*orders.c:21' report || { cat report; exit 1; }
cc tenant.c -o tenant $(pkg-config --cflags --libs kmem)
[ "$(./tenant 2>/dev/null)" = refused ]
dpkg --purge libkmem-dev kmem >/dev/null
INSIDE
after=$(files)
diff <(echo "$before") <(echo "$after") || fail "files are left after the purge"
echo "Debian packages: installed, used and purged"
