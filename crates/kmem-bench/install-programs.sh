#!/bin/sh
# Install what the tables compare with: programs and allocator libraries of Debian or Ubuntu.
set -eu

as_root=
[ "$(id -u)" -eq 0 ] || as_root=sudo
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    cmake g++ make \
    libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4 \
    perl python3 redis-server redis-tools sqlite3

# Scudo is in the compiler's run-time library. The newest package that there is has the newest one.
for version in 21 20 19 18 17 16 15 14; do
    if [ -n "$(apt-cache madison "libclang-rt-$version-dev")" ]; then
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
            "libclang-rt-$version-dev"
        break
    fi
done
