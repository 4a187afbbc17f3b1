#!/usr/bin/env bash
# Makes the pictures of docs/pictures. Those of a report are taken in headless Chromium by the test
# that clicks through one. Those of `kmem top` show a redis after a load, on a terminal. Needs
# chromedriver, redis and python3-pyte; with pngquant the pictures are smaller.
#
#	scripts/pictures.sh
set -euo pipefail
cd "$(dirname "$0")/.."

pictures=$(mktemp -d)
trap 'rm -rf "$pictures"' EXIT
cargo build -p kmem-preload -p kmem-cli
KMEM_PICTURES=$pictures cargo test -p kmem-cli --test report a_report_can_be_clicked_through
mkdir -p docs/pictures
for name in report-desktop report-phone flame-desktop; do
  cp "$pictures/$name.png" "docs/pictures/$name.png"
  # Fewer colours make a smaller file, where there is a tool for it.
  if command -v pngquant >/dev/null; then
    pngquant --force --ext .png --skip-if-larger 64 "docs/pictures/$name.png" || true
  fi
done

kmem=$PWD/target/debug/kmem
KMEM_CONF=age:1 LD_PRELOAD=$PWD/target/debug/libkmem.so \
  redis-server --port 0 --unixsocket "$pictures/redis" --save '' --appendonly no >/dev/null &
redis=$!
trap 'kill "$redis"; rm -rf "$pictures"' EXIT
until [ -S "$pictures/redis" ]; do sleep 0.1; done
redis-benchmark -s "$pictures/redis" -q -n 100000 -r 100000 -t set,lpush,sadd,hset >/dev/null
scripts/screen.py 100x22 '' docs/pictures/top.svg "$kmem" top --no-mmap -p "$redis"
# A page about the first row.
scripts/screen.py 100x22 'j\r' docs/pictures/top-page.svg "$kmem" top --no-mmap -p "$redis"
ls -l docs/pictures
