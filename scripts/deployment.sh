#!/usr/bin/env bash
#
# Checks the files for systemd, Docker and Kubernetes, as far as this machine can. systemd-analyze
# verifies the drop-in. The commands of the pod run in the order of Kubernetes, on this machine.
# A Docker daemon builds the images. Parts that the machine does not offer are recorded as not run.
#
# usage: deployment.sh [--library PATH] [--kmem PATH]
#
#     --library PATH  the library (default: target/release/libkmem.so of this repository)
#     --kmem PATH     the command (default: kmem beside the library)

set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/not-run.sh

library=target/release/libkmem.so
kmem=
while (($#)); do
	case $1 in
	--library) library=$2 && shift 2 ;;
	--kmem) kmem=$2 && shift 2 ;;
	*) echo "deployment.sh: unknown option $1" >&2 && exit 2 ;;
	esac
done
library=$(readlink -f "$library")
kmem=$(readlink -f "${kmem:-$(dirname "$library")/kmem}")
if [[ ! -f $library || ! -x $kmem ]]; then
	echo "deployment.sh: no library or no kmem; cargo build --release" >&2
	exit 2
fi

work=$(mktemp -d)
started=()
cleanup() {
	((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT

fail() {
	printf 'deployment.sh: %s\n' "$*" >&2
	exit 1
}

# Waits for a command to succeed, at most 30 s.
await() {
	local tries
	for ((tries = 0; tries < 300; tries++)); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.1
	done
	fail "in vain: $*"
}

if command -v systemd-analyze >/dev/null; then
	mkdir -p "$work/units/example.service.d"
	printf '[Service]\nExecStart=/bin/true\n' >"$work/units/example.service"
	cp packaging/systemd/service.d/kmem.conf "$work/units/example.service.d/"
	said=$(SYSTEMD_UNIT_PATH=$work/units: \
		systemd-analyze verify --man=no "$work/units/example.service" 2>&1) || fail "drop-in: $said"
	[[ -z $said ]] || fail "drop-in: $said"
	echo "the drop-in is right"
else
	not_run "the drop-in of systemd" "there is no systemd-analyze"
fi

# Prints one array of a container's command, or its LD_PRELOAD, with the paths of this machine.
pod() {
	python3 - "$1" "$work" "$library" "$kmem" <<'PYTHON'
import sys, yaml
name, work, library, kmem = sys.argv[1:]
pod = yaml.safe_load(open("packaging/kubernetes/pod.yaml"))
assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod"), pod
spec = pod["spec"]
assert spec["shareProcessNamespace"] is True
volumes = {volume["name"] for volume in spec["volumes"]}
containers = {c["name"]: c for c in spec["initContainers"] + spec["containers"]}
for container in containers.values():
    assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, container
words = containers[name]["command"]
environment = [f"{e['name']}={e['value']}" for e in containers[name].get("env", [])]
for word in ["env", *environment, *words]:
    word = word.replace("/usr/lib/libkmem.so", library).replace("/usr/bin/kmem", kmem)
    word = word.replace("/kmem/libkmem.so", f"{work}/kmem/libkmem.so")
    word = word.replace("/reports", f"{work}/reports").replace("0.0.0.0:9178", "127.0.0.1:19178")
    print(word, end="\0")
PYTHON
}

start() {
	local words
	mapfile -d '' words < <(pod "$1")
	((${#words[@]} > 1)) || fail "pod.yaml has no container $1"
	(cd "$work" && exec "${words[@]}" "${@:2}") >"$work/$1.log" 2>&1 &
	started+=($!)
	pid=$!
}

if ! python3 -c 'import yaml' 2>/dev/null; then
	not_run "the pod of Kubernetes" "python3 has no yaml"
elif ! command -v redis-server redis-cli curl >/dev/null; then
	not_run "the pod of Kubernetes" "there is no redis-server, no redis-cli or no curl"
else
	mkdir "$work/kmem" "$work/reports"
	# Without the library, the service starts, too.
	start service --port 16379
	await redis-cli -p 16379 ping
	grep -q 'cannot be preloaded' "$work/service.log" || fail "the loader did not miss the library"
	kill "$pid" && wait "$pid" || true

	start library
	wait "$pid" || fail "the init container failed: $(cat "$work/library.log")"
	start service --port 16379
	service=$pid
	await redis-cli -p 16379 set key value
	"$kmem" ls | grep -q "$service" || fail "kmem does not see the service"
	start export
	scrape() { curl -fs http://127.0.0.1:19178/metrics | grep -q "pid=\"$service\""; }
	await scrape
	start watch
	sees() { grep -q . "$work/watch.log"; }
	await sees
	kill -KILL "$service"
	wait "$service" 2>/dev/null || true
	reports() { [[ -n $(ls -A "$work/reports") ]]; }
	await reports
	echo "the commands of the pod work"
fi

if command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; then
	docker build -f packaging/docker/Dockerfile --target service -t redis-under-kmem .
	docker run --rm redis-under-kmem redis-server --version | grep -q 'malloc='
	echo "the images are built"
else
	not_run "the images of Docker" "there is no Docker daemon"
fi
