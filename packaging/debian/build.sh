#!/usr/bin/env bash
# Builds the Debian packages kmem (the command, the libraries) and libkmem-dev (headers, the
# archive, pkg-config, CMake). Prints their paths.
#
#   packaging/debian/build.sh DIRECTORY
set -euo pipefail
out=$(mkdir -p "${1:?usage: $0 DIRECTORY}" && cd "$1" && pwd)
cd "$(dirname "$0")/../.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
machine=$(dpkg --print-architecture)
multiarch=$(cc -print-multiarch)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

make --silent
make --silent install PREFIX=/usr LIBDIR="/usr/lib/$multiarch" DESTDIR="$tree/all"

# control NAME SECTION DEPENDS SUMMARY, and the rest of the description from the standard input.
control() {
  mkdir -p "$tree/$1/DEBIAN" "$tree/$1/usr/share/doc/$1"
  cat packaging/debian/copyright LICENSE-MIT >"$tree/$1/usr/share/doc/$1/copyright"
  {
    printf 'Package: %s\nVersion: %s\n' "$1" "$version"
    printf 'Architecture: %s\nSection: %s\n' "$machine" "$2"
    printf 'Priority: optional\nMaintainer: The kmem maintainers <maintainers@kmem.invalid>\n'
    printf 'Depends: %s\n' "$3"
    printf 'Installed-Size: %s\n' "$(du -sk --apparent-size "$tree/$1/usr" | cut -f1)"
    printf 'Description: %s\n' "$4"
    sed 's/^/ /'
  } >"$tree/$1/DEBIAN/control"
}

# place NAME PATH..: moves files of the tree into a package.
place() {
  local name=$1 path
  shift
  for path in "$@"; do
    mkdir -p "$tree/$name/$(dirname "$path")"
    mv "$tree/all/$path" "$tree/$name/$path"
  done
}

library=usr/lib/$multiarch
(cd "$tree/all" && ls -d "$library"/*.so.*) | while read -r path; do place kmem "$path"; done
# dpkg has a list of its own.
rm -r "$tree/all/usr/share/doc"
place kmem usr/bin/kmem usr/lib/kmem
place libkmem-dev usr/include/kmem usr/include/kmem.h usr/include/kmem_module.h "$library"
for path in $(cd "$tree/all" && find usr/share -mindepth 1 -maxdepth 1 2>/dev/null) \
  $(cd "$tree/all" && find usr/lib -mindepth 1 -maxdepth 1 2>/dev/null); do
  place kmem "$path"
done

control kmem utils "libc6 (>= 2.35), libgcc-s1" "memory that can account for itself" <<'TEXT'
A malloc for unchanged programs that knows which call site and which group hold each byte, and the
command that reads it from running processes, cores and files that survive a process.
TEXT
control libkmem-dev libdevel "kmem (= $version)" \
  "memory that can account for itself (development)" <<'TEXT'
Headers, a static library, and files for pkg-config and CMake: groups with limits, scopes, and the
interface of the Linux kernel's allocators for programs in C and C++.
TEXT
echo "activate-noawait ldconfig" >"$tree/kmem/DEBIAN/triggers"

left=$(cd "$tree/all" && find . \( -type f -o -type l \))
[ -z "$left" ] || { echo "in no package: $left" >&2; exit 1; }
for name in kmem libkmem-dev; do
  package=$out/${name}_${version}_$machine.deb
  dpkg-deb --root-owner-group --build "$tree/$name" "$package" >/dev/null
  echo "$package"
done
