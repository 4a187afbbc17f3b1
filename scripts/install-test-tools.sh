#!/usr/bin/env bash
# Installs the tools that the tests and the scripts use, from Debian's packages. What has no such
# package goes to target/test-tools, where the tests look for it. That is DuckDB, jsonschema, the
# schema of speedscope, and a CPython that is newer than this system's.
#
#	scripts/install-test-tools.sh
#
# Without root or apt-get it installs nothing. Prints what is still missing, and fails if anything
# is. Two scripts install the programs that they compare with themselves: real-programs.sh, and
# crates/kmem-bench/install-programs.sh.
set -euo pipefail

# A command, or a file, and its package.
readonly TOOLS=(
  "cc gcc"
  "gcc gcc"
  "c++ g++"
  "g++ g++"
  "clang clang"
  "musl-gcc musl-tools"
  "objcopy binutils"
  "readelf binutils"
  "gcore gdb"
  "valgrind valgrind"
  "/usr/libexec/valgrind/dh_view.js valgrind"
  "go golang-go"
  "node nodejs"
  "setpriv util-linux"
  "python3 python3"
  "/usr/share/doc/python3-venv python3-venv"
  "/usr/include/glib-2.0/glib.h libglib2.0-dev"
  "/usr/include/openssl/crypto.h libssl-dev"
  "/usr/include/sqlite3.h libsqlite3-dev"
  "/usr/include/lua5.4/lua.h liblua5.4-dev"
  "perl perl-base"
  "chromium chromium"
  "chromedriver chromium-driver"
  "redis-server redis-server"
  "redis-cli redis-tools"
  "gzip gzip"
  "xz xz-utils"
  "zstd zstd"
  "curl curl"
  "cmake cmake"
  "pkg-config pkg-config"
  "debootstrap debootstrap"
  "debuginfod debuginfod"
  "debuginfod-find debuginfod"
  "modinfo kmod"
  "groff groff-base"
  "prometheus prometheus"
  "promtool prometheus"
  "systemd-analyze systemd"
  "/usr/lib/python3/dist-packages/yaml python3-yaml"
  "qemu-aarch64 qemu-user"
  "aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu"
  "/usr/aarch64-linux-gnu/include/stdio.h libc6-dev-arm64-cross"
  "qemu-system-x86_64 qemu-system-x86"
  "qemu-system-aarch64 qemu-system-arm"
  "cpio cpio"
)
readonly EXTRA=$(dirname "$0")/../target/test-tools
export PATH=$PATH:/usr/sbin:/sbin

is_there() {
  if [[ $1 == /* ]]; then
    [ -e "$1" ]
  else
    command -v "$1" >/dev/null
  fi
}

packages() {
  local entry
  for entry in "${TOOLS[@]}"; do
    is_there "${entry% *}" || echo "${entry#* }"
  done | sort -u
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

mapfile -t missing < <(packages)
if ((${#missing[@]})) && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq >/dev/null 2>&1 || true
  if ! apt_install "${missing[@]}"; then
    # One package that cannot be had does not keep the others away.
    for package in "${missing[@]}"; do
      apt_install "$package" || true
    done
  fi
fi

readonly SPEEDSCOPE=https://registry.npmjs.org/speedscope/-/speedscope-1.25.0.tgz

has_python() {
  "$EXTRA/bin/python3" -c "import $1" 2>/dev/null
}

has_schema() {
  [ -s "$EXTRA/speedscope/file-format-schema.json" ]
}

[ -x "$EXTRA/bin/pip" ] || python3 -m venv "$EXTRA" || true
for package in duckdb jsonschema; do
  has_python "$package" || "$EXTRA/bin/pip" install --quiet "$package" || true
done
if ! has_schema; then
  mkdir -p "$EXTRA/speedscope"
  curl -sSLf "$SPEEDSCOPE" | tar -xzf - -C "$EXTRA/speedscope" --strip-components=3 \
    package/dist/release/file-format-schema.json || true
fi
"$(dirname "$0")/newest-python.sh" 3.14 "$EXTRA/python3.14" >/dev/null 2>&1 || true

mapfile -t missing < <(packages)
has_python duckdb || missing+=(duckdb)
has_python jsonschema || missing+=(jsonschema)
has_schema || missing+=(speedscope)
[ -x "$EXTRA/python3.14/bin/python3" ] || missing+=(python3.14)
if ((${#missing[@]})); then
  echo "missing, by package: ${missing[*]}" >&2
  exit 1
fi
