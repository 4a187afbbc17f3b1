#!/bin/sh
# Places what `make` has built. The Makefile calls it with its variables. Lists every file in
# DATADIR/doc/kmem/files, which packaging/uninstall.sh reads.
set -eu

built=$TARGET/dist
# Cargo leaves libraries that a program depends on there.
libraries=$built/deps
archive=$TARGET/archive/dist/libkmem.a
for file in "$built/kmem" "$libraries/libkmem.so" "$libraries/libkmem_modules.so" "$archive"; do
  [ -f "$file" ] || { echo "$file is not there: run make first" >&2; exit 1; }
done

doc=$DATADIR/doc/kmem
list=$DESTDIR$doc/files
mkdir -p "$DESTDIR$doc"
: >"$list"

# place MODE FILE PATH: `-` is the standard input.
place() {
  mkdir -p "$DESTDIR$(dirname "$3")"
  rm -f "$DESTDIR$3"
  if [ "$2" = - ]; then cat >"$DESTDIR$3"; else cp "$2" "$DESTDIR$3"; fi
  chmod "$1" "$DESTDIR$3"
  echo "$3" >>"$list"
}

# link TARGET PATH
link() {
  mkdir -p "$DESTDIR$(dirname "$2")"
  ln -sf "$1" "$DESTDIR$2"
  echo "$2" >>"$list"
}

# configured FILE PATH: puts paths and the version into a file.
configured() {
  sed -e "s|@PREFIX@|$PREFIX|" -e "s|@LIBDIR@|$LIBDIR|" -e "s|@INCLUDEDIR@|$INCLUDEDIR|" \
    -e "s|@VERSION@|$VERSION|" -e "s|@INTERFACE@|$INTERFACE|" -e "s|/usr/bin/kmem|$BINDIR/kmem|" \
    "$1" | place 644 - "$2"
}

place 755 "$built/kmem" "$BINDIR/kmem"
for name in libkmem libkmem_modules; do
  place 755 "$libraries/$name.so" "$LIBDIR/$name.so.$VERSION"
  link "$name.so.$VERSION" "$LIBDIR/$name.so.$INTERFACE"
  link "$name.so.$INTERFACE" "$LIBDIR/$name.so"
done
place 644 "$archive" "$LIBDIR/libkmem.a"
# The command looks there if the libraries are not beside its own directory.
if [ "$LIBDIR" != "$PREFIX/lib" ]; then
  link "$LIBDIR/libkmem.so.$VERSION" "$PREFIX/lib/kmem/libkmem.so"
fi
for header in $(cd include && find . -name '*.h'); do
  place 644 "include/$header" "$INCLUDEDIR/${header#./}"
done
configured packaging/kmem.pc.in "$LIBDIR/pkgconfig/kmem.pc"
for file in kmemConfig.cmake kmemConfigVersion.cmake; do
  configured "packaging/$file.in" "$LIBDIR/cmake/kmem/$file"
done
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$built/kmem" man "$pages"
for page in "$pages"/*; do
  place 644 "$page" "$DATADIR/man/man1/$(basename "$page")"
done
"$built/kmem" completions bash | place 644 - "$DATADIR/bash-completion/completions/kmem"
"$built/kmem" completions zsh | place 644 - "$DATADIR/zsh/site-functions/_kmem"
"$built/kmem" completions fish | place 644 - "$DATADIR/fish/vendor_completions.d/kmem.fish"
for unit in kmem-export kmem-watch; do
  configured "packaging/systemd/$unit.service" "$PREFIX/lib/systemd/system/$unit.service"
done
for licence in LICENSE-APACHE LICENSE-MIT; do
  place 644 "$licence" "$doc/$licence"
done
