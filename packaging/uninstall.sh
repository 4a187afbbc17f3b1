#!/bin/sh
# Removes the files that packaging/install.sh has listed, and directories of kmem's own that are
# empty then. The Makefile calls it with its variables.
set -eu

list=$DESTDIR$DATADIR/doc/kmem/files
[ -f "$list" ] || { echo "$list is not there: nothing is installed under this PREFIX" >&2; exit 1; }
while read -r path; do
  rm -f "$DESTDIR$path"
done <"$list"
rm "$list"
for directory in "$DATADIR/doc/kmem" "$LIBDIR/cmake/kmem" "$INCLUDEDIR/kmem" "$PREFIX/lib/kmem"; do
  rmdir "$DESTDIR$directory" 2>/dev/null || true
done
