#!/usr/bin/env python3
"""Makes the seeds of the fuzz targets anew, from real processes and files.

usage: scripts/fuzz-seeds.py [DIRECTORY]

The seeds go to DIRECTORY/TARGET/, by default fuzz/corpus/TARGET/, and the images of a core file and
of a black box to crates/kmem-fuzz/src/. Needs kmem and libkmem.so in target/debug, a C compiler,
objcopy, gzip, xz and zstd.
"""

import gzip
import lzma
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KMEM = os.path.join(ROOT, "target/debug/kmem")
CORPUS = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "fuzz/corpus")
IMAGES = os.path.join(ROOT, "crates/kmem-fuzz/src")
PAGE = 4096
CONF = "depth:4,cumulative:1,age:1,blackbox:box"


def put(target, name, content):
    directory = os.path.join(CORPUS, target)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, name), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def run(*command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **more).stdout


def kmem(*args):
    return run(KMEM, *args)


def source(path):
    with open(os.path.join(ROOT, path), "rb") as file:
        return file.read()


def here(path):
    with open(path, "rb") as file:
        return file.read()


def elsewhere(content):
    """Paths of files that no machine has, with the same length."""
    return re.sub(rb"/(?=(?:usr|tmp|lib|lib64|home|root)/)[a-z]", b"/_", content)


def image(name, content):
    """The pages of a sparse file that are not all zeroes; see crates/kmem-fuzz/src/image.rs."""
    none = bytes(PAGE)
    pages = [at for at in range(0, len(content), PAGE) if content[at : at + PAGE].strip(b"\0")]
    packed = struct.pack("<QQ", len(content), len(pages)) + struct.pack(f"<{len(pages)}Q", *pages)
    packed += b"".join((content[at : at + PAGE] + none)[:PAGE] for at in pages)
    with open(os.path.join(IMAGES, name), "wb") as file:
        file.write(run("zstd", "-19", "-c", input=packed))


def changes(cut, *of):
    """An input of the targets that change an image."""
    parts = [struct.pack("<IB", place, len(to)) + to for place, to in of]
    return struct.pack("<I", cut) + b"".join(parts)


class Core:
    """A core file, of which parts become holes."""

    def __init__(self, content):
        self.content = bytearray(content)
        offset, count = struct.unpack_from("<Q", content, 32)[0], struct.unpack_from("<H", content, 56)[0]
        heads = (struct.unpack_from("<IIQQQQQQ", content, offset + 56 * n) for n in range(count))
        # Type, flags, offset, address, physical, size in the file, size, alignment.
        self.heads = list(heads)
        self.head_at = offset

    def files(self):
        """Ranges of addresses that are of files other than those of kmem."""
        notes = next(head for head in self.heads if head[0] == 4)
        at, end = notes[2], notes[2] + notes[5]
        while at < end:
            name, size, kind = struct.unpack_from("<III", self.content, at)
            at += 12 + (name + 3) // 4 * 4
            if kind == 0x46494C45:
                count = struct.unpack_from("<Q", self.content, at)[0]
                ranges = [struct.unpack_from("<QQQ", self.content, at + 16 + 24 * n) for n in range(count)]
                names = bytes(self.content[at + 16 + 24 * count : at + size]).split(b"\0")
                yield from (r[:2] for r, of in zip(ranges, names) if not of.startswith(b"/memfd:"))
                start = at + 16 + 24 * count
                self.content[start : at + size] = elsewhere(bytes(self.content[start : at + size]))
            at += (size + 3) // 4 * 4

    def without_files(self):
        dropped = list(self.files())
        for head in self.heads:
            if head[0] == 1 and any(start <= head[3] < end for start, end in dropped):
                self.content[head[2] : head[2] + head[5]] = bytes(head[5])
        return self

    def small(self, most):
        """Headers, notes, and the first page of every segment that has one."""
        notes = next(head for head in self.heads if head[0] == 4)
        out = bytearray(self.content[: notes[2] + notes[5]])
        out += bytes(-len(out) % PAGE)
        for number, head in enumerate(self.heads):
            if head[0] != 1:
                continue
            first = bytes(self.content[head[2] : head[2] + min(head[5], PAGE)])
            keep = first.strip(b"\0") and len(out) < most
            place = (*head[:2], len(out), *head[3:5], len(first) if keep else 0, *head[6:])
            struct.pack_into("<IIQQQQQQ", out, self.head_at + 56 * number, *place)
            out += first if keep else b""
        return bytes(out)


def expanded(recording):
    """A recording whose payloads are not compressed, so that a fuzzer changes messages."""
    out, at = recording[:16], 16
    while at < len(recording):
        size, _, kind, flags, _, _, time_ns = struct.unpack_from("<IIBBHIQ", recording, at)
        payload = recording[at + 24 : at + 24 + size]
        at += 24 + size
        if flags & 1:
            payload = run("zstd", "-d", "-c", input=payload)
        head = struct.pack("<BBHIQ", kind, 0, 0, 0, time_ns)
        payload = elsewhere(payload)
        out += struct.pack("<II", len(payload), zlib.crc32(head + payload)) + head + payload
    return out


def process(directory):
    """A process under kmem: its texts, rows, recording, black box and core."""
    program = os.path.join(directory, "program")
    include = os.path.join(ROOT, "include")
    with open(os.path.join(directory, "seeds.c"), "wb") as file:
        file.write(source("fuzz/seeds.c"))
    run("cc", "-g", "-O1", "-fno-omit-frame-pointer", "-Wl,--build-id", "-I" + include,
        f"-ffile-prefix-map={directory}=/app", "-o", program, "seeds.c", cwd=directory)
    library = run(KMEM, "library").decode().strip()
    shutil.copy(library, os.path.join(directory, "libkmem.so"))
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    limited = lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    environment = {"LD_PRELOAD": "./libkmem.so", "KMEM_CONF": CONF}
    child = subprocess.Popen(["./program"], cwd=directory, env=environment, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, preexec_fn=limited)
    child.stdout.readline()
    pid = str(child.pid)
    with open(f"/proc/{pid}/coredump_filter", "w") as file:
        file.write("0x7f")
    put("allocinfo", "v1.txt", elsewhere(kmem("dump", "--format", "1.0", "-p", pid)))
    put("allocinfo", "v2.txt", elsewhere(kmem("dump", "-p", pid)))
    put("allocinfo", "dump.json", elsewhere(kmem("dump", "--json", "-p", pid)))
    put("allocinfo", "dump.jsonl", elsewhere(kmem("dump", "--format", "jsonl", "-p", pid))[:1500])
    put("process", "maps", elsewhere(here(f"/proc/{pid}/maps"))[:3000])
    put("process", "smaps", elsewhere(here(f"/proc/{pid}/smaps"))[:6000])
    recording = os.path.join(directory, "recording")
    kmem("record", "-o", recording, "--every", "50ms", "--for", "200ms", "-p", pid)
    put("recording", "process", here(recording))
    put("recording", "plain", expanded(here(recording)))
    os.kill(child.pid, 11)
    child.wait()
    image("blackbox.image.zst", elsewhere(here(os.path.join(directory, "box"))))
    core = Core(here(os.path.join(directory, "core"))).without_files()
    image("books.image.zst", core.content)
    put("core", "process", core.small(96 << 10))
    for target in ["blackbox", "books"]:
        put(target, "whole", changes(0))
        put(target, "cut", changes(40000))
        put(target, "headers", changes(0, (0x40, b"\xff"), (0x1008, b"\xff\xff\xff\x7f")))
        put(target, "many", changes(0, *[(4099 * n, b"\x01\x80") for n in range(1, 60)]))
        put(target, "later", changes(0, *[(65536 + 8 * 1021 * n, bytes([n, 0, 1])) for n in range(40)]))


def elf(directory):
    """Small files with symbols of each kind; the last eight bytes are an address in them."""
    text = os.path.join(directory, "names.c")
    with open(text, "w") as file:
        file.write("static inline int half(int n) { return n / 2 + 7 % n; }\n"
                   "int names(int n) {\n    return half(n) * 3 + half(n + 1);\n}\n")
    kinds = {"dwarf5": ["-g"], "dwarf4": ["-gdwarf-4"], "packed": ["-g", "-gz"], "plain": []}
    for name, flags in kinds.items():
        path = os.path.join(directory, name)
        run("cc", "-O2", "-shared", "-nostdlib", "-fPIC", "-Wl,-z,noseparate-code,--build-id", *flags,
            f"-ffile-prefix-map={directory}=/app", "-o", path, text, cwd=directory)
        symbols = run("nm", path).decode().splitlines()
        address = next(int(line.split()[0], 16) for line in symbols if line.endswith(" T names"))
        put("symbols", name, here(path) + struct.pack("<Q", address + 4))


def modules(directory):
    include = "-I" + os.path.join(ROOT, "include")
    everything = os.path.join(directory, "everything.ko")
    run("cc", "-O1", "-c", "-fPIC", include, f"-ffile-prefix-map={ROOT}=/app", "-o", everything,
        os.path.join(ROOT, "crates/kmem-module/tests/modules/everything.c"))
    run("objcopy", "--strip-debug", "--remove-section=.comment", everything)
    text = os.path.join(directory, "little.c")
    with open(text, "w") as file:
        file.write('#include "kmem_module.h"\nMODULE_LICENSE("GPL");\n'
                   "static int __init go(void) { return 0; } module_init(go);\n")
    little = os.path.join(directory, "little.ko")
    run("cc", "-O1", "-c", "-fPIC", include, "-o", little, text)
    run("objcopy", "--strip-debug", "--remove-section=.comment", little)
    put("module", "everything", here(everything))
    put("module", "little", here(little))
    put("packed", "gzip", gzip.compress(here(little), mtime=0))
    put("packed", "xz", lzma.compress(here(little), check=lzma.CHECK_CRC32))
    put("packed", "zstd", run("zstd", "-c", "-19", little))
    put("packed", "zstd_without_length", run("zstd", "-c", input=here(little)[:2000]))
    host = subprocess.Popen([KMEM, "modload", "--stay", little], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
    # The host is the child of the command, or the command itself.
    board = None
    while board is None and host.poll() is None:
        board = next(filter(None, map(board_of, family(host.pid))), None)
        time.sleep(0.01)
    put("board", "host", board[:12 << 10].rstrip(b"\0") + bytes(8))
    host.stdin.close()
    host.wait()


def family(pid):
    found = [pid]
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if here(f"/proc/{entry}/stat").rsplit(b")", 1)[1].split()[1] == str(pid).encode():
                found.append(int(entry))
        except OSError:
            pass
    return found


def board_of(pid):
    """The board of a host in which a module lives."""
    try:
        line = next(l for l in here(f"/proc/{pid}/maps").decode().splitlines() if "kmem-modules" in l)
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(start)
            board = memory.read(min(end - start, 64 << 10))
            return board if b"little" in board else None
    except (StopIteration, OSError):
        return None


def texts():
    data = "crates/kmem-snapshot/tests/data/"
    lines = source(data + "allocinfo-6.12.txt").splitlines(keepends=True)
    put("allocinfo", "kernel", b"".join(lines[:40]))
    put("allocinfo", "odd", "allocinfo - version: 2.0\n#     <size>  <calls> <tag info>\n"
        "       -4096 18446744073709551615 ./include/a.h:1 func:a \n"
        "        nid0        94912     2966\n"
        "          64        1 drivers/../b.h:2 [mod] func:b accurate:no peak:7 \n")
    put("kernel_log", "report",
        "[    1.000000] Memory allocations:\n"
        "[    1.000001]      1023 KiB        1 mm/a.c:1 func:a\n"
        "[   41.207768] Memory allocations (profiling is currently turned on):\n"
        "[   41.207789]     40.5 MiB     5184 mm/slub.c:2478 func:alloc_slab_page\n"
        "[   41.207790] systemd[1]: another CPU's line\n"
        "[   41.207809]     33.0 MiB     8448 drivers/net/veth.c:310 [veth] func:veth_alloc\n"
        "[   41.207810] Out of memory: Killed process 7\n")
    slabs = source(data + "slabinfo-6.12.txt").splitlines(keepends=True)
    put("kernel_tables", "slabinfo", b"".join(slabs[:12]))
    zones = here("/proc/zoneinfo").decode()
    put("kernel_tables", "zoneinfo", zones[:1500])
    put("depmod", "indexes",
        "kernel/first.ko: kernel/second.ko.xz kernel/third.ko\nkernel/second.ko.xz:\n"
        "kernel/third.ko: kernel/second.ko.xz\n\0"
        "alias pci:v00001AF4d*sv* first\nalias second-* second\n\0"
        "softdep first pre: third post: fourth\n\0kernel/built.ko\n")
    put("perf_map", "jit", "1000 20 first\n7f0000000000 40 LazyCompile:~second file.js:1\n"
        "0x1010 8 overlapping\nbad\n")
    put("process", "groups", "4:memory:/a/b\n0::/user\n\0"
        "30 1 0:26 / /sys/fs/cgroup rw shared:4 - tmpfs tmpfs rw\n"
        "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 30 0:28 /box /cg rw - cgroup2 cgroup2 rw\n")
    locations = bytes([0x80, 0x11, 0x80 | 11 << 3 | 1, 5, 9, 0x80 | 13 << 3, 0x47, 2, 0xF8, 0xF0])
    put("python", "locations", struct.pack("<II", 10, 6) + locations)
    put("python", "ranges", struct.pack("<II", 10, 8) + bytes([4, 1, 6, 0x80, 2, 3, 0, 5, 2, 0xFF]))
    words = [0] * 96
    for number, word in zip([23, 24, 30, 31, 35, 37, 38, 39, 43, 70],
                            [72, 152, 0, 56, 112, 128, 136, 68, 208, 40]):
        words[number] = word
    put("python", "offsets", struct.pack("<96Q", *words))
    page = source("docs/configuration.md").decode()
    names = re.findall(r"^\| `([a-z_]+)` \|", page, re.M)
    put("settings", "all", "# all\n" + ",".join(f"{name}:1" for name in names) + "\n")
    put("settings", "values", "thp:always,boxes:/var/tmp/a#b,depth:8 # enough\ndecay_ms:10s\n"
        "skip:a*|b?,mem_profiling:never,quarantine_kb:1G,dept:8,report:x\x1b[2J\n")
    for name, request in {
        "metrics": "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text;"
                   "version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n\r\n",
        "heap": "GET /debug/pprof/heap?seconds=1&debug=1&pid=7 HTTP/1.1\r\nHost: a\r\n\r\n",
        "allocs": "GET /debug/pprof/allocs?group=%2Fa&pid=x HTTP/1.0\r\n\r\n",
        "symbol": "POST /debug/pprof/symbol HTTP/1.1\r\nContent-Length: 6\r\n\r\n0x1234",
        "chunked": "POST /debug/pprof/symbol HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "3\r\n0x1\r\n0\r\n\r\n",
        "index": "HEAD /debug/pprof/ HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
        "absolute": "GET http://a/%00%1b[2J?%1b HTTP/1.1\r\nAccept: \x80\r\nAccept: b\r\n\r\n",
    }.items():
        put("http", name, request.encode("latin-1"))


with tempfile.TemporaryDirectory(prefix="kmem-") as temporary:
    texts()
    elf(temporary)
    modules(temporary)
    process(temporary)
total = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(CORPUS) for f in files)
print(f"{total} bytes of seeds")
