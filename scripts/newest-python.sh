#!/usr/bin/env bash
# Puts a CPython that is newer than this system's under a directory, from Debian's testing. It comes
# with the C library that it needs, and nothing is installed.
#
#	scripts/newest-python.sh VERSION DIRECTORY	VERSION as 3.14
#
# DIRECTORY/bin/python3 runs it. Needs apt-get and dpkg-deb.
set -euo pipefail
version=$1
mkdir -p "$2"
to=$(realpath "$2")
[ ! -x "$to/bin/python3" ] || exit 0

root=$to/root
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,archives}/partial "$to/bin" "$root"/usr/{bin,lib,lib64,sbin}
for dir in bin lib lib64 sbin; do
  ln -sfn "usr/$dir" "$root/$dir"
done
: >"$work/status"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] http://deb.debian.org/debian testing main" >"$work/sources.list"
apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=-
  -o "Dir::State::Lists=$work/lists" -o "Dir::State::status=$work/status"
  -o "Dir::Cache=$work" -o "Dir::Cache::archives=$work/archives" -o Debug::NoLocking=1
  -o APT::Sandbox::User=root -o APT::Architecture=amd64 -o APT::Architectures=amd64)
"${apt[@]}" update
"${apt[@]}" install --yes --download-only --no-install-recommends "python$version" >/dev/null
for package in "$work"/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink
done

cat >"$to/bin/python3" <<WRAPPER
#!/bin/sh
PYTHONHOME=$root/usr exec $root/usr/lib64/ld-linux-x86-64.so.2 --argv0 "\$0" \\
  --library-path $root/usr/lib/x86_64-linux-gnu $root/usr/bin/python$version "\$@"
WRAPPER
chmod +x "$to/bin/python3"
"$to/bin/python3" -c "import sys; assert sys.version.startswith('$version.'), sys.version"
