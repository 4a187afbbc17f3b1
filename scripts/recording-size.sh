#!/usr/bin/env bash
#
# Records a busy redis, and prints how large a recording of an hour is at that rate.
#
# usage: recording-size.sh [--seconds N] [--every TIME] [--kmem PATH] [--library PATH]
#
#     --seconds N      record for so long; default: 180
#     --every TIME     as of kmem record; default: 100ms
#     --kmem PATH      the kmem to use (default: that of target/release)
#     --library PATH   the libkmem.so to use (default: that of target/release)
#
# The load is redis-benchmark with nine commands on 100,000 keys, without a pause. It fails where an
# hour takes more than 20 MiB.

set -euo pipefail
repository=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
readonly repository
# shellcheck source=scripts/options.sh
. "$repository/scripts/options.sh"

seconds=180 every=100ms
kmem=$repository/target/release/kmem library=$repository/target/release/libkmem.so
read_options 'seconds every kmem library' "$@"
for file in "$kmem" "$library"; do
	[[ -f $file ]] || die "$file is absent: run \`cargo build --release\`, or name another"
done
for program in redis-server redis-benchmark; do
	command -v "$program" >/dev/null || die "no $program: install the package redis"
done

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
socket=$work/socket

LD_PRELOAD=$library redis-server --port 0 --unixsocket "$socket" --save '' --appendonly no \
	--dir "$work" >"$work/log" &
server=$!
until [[ -S $socket ]]; do
	kill -0 "$server" 2>/dev/null || die "redis-server ended: $(tail -n 1 "$work/log")"
	sleep 0.1
done
commands=set,get,incr,lpush,sadd,hset,zadd,lrange_100,mset
while redis-benchmark -s "$socket" -q -n 50000 -r 100000 -d 200 -c 8 -t "$commands"; do :; done \
	>"$work/load" 2>&1 &

"$kmem" record -p "$server" --every "$every" --for "${seconds}s" -o "$work/recording"
bytes=$(stat -c %s "$work/recording")
hour=$((bytes * 3600 / seconds))
printf '%d bytes in %d seconds, so %d KiB in an hour\n' "$bytes" "$seconds" $((hour >> 10))
((hour <= 20 << 20)) || die "more than 20 MiB in an hour"
