"""Compares lines with tracemalloc: traced.py trace SIZES writes sizes that Python asked for, with
their lines. traced.py books SIZES tells `BYTES OBJECTS LINE FUNCTION FILE` of these lines, with
each size as the allocator rounds it.

The rule: tracemalloc lacks what does not go through Python's own functions, and what was there when
it began. Both count an object from a list of free ones at the line that first asked for it. So a
line agrees to the byte, but for objects that were in such a list at the beginning."""
import collections
import ctypes
import dis
import sys
import tracemalloc

COUNT = 3000
texts, blobs, points, sets, arrays, dicts, pairs = ([None] * COUNT for _ in range(7))


class Point:
    __slots__ = ("x", "y")


def work():
    for i in range(COUNT):
        texts[i] = "text %d" % i
        blobs[i] = bytes(i + 2)
        points[i] = Point()
        sets[i] = {texts[i], blobs[i]}
        arrays[i] = bytearray(i + 1)
        arrays[i].extend(b"more" * 20)


def reuse():
    for i in range(COUNT):
        dicts[i] = {"key": None}
        pairs[i] = [None, None, None]


def run():
    work()
    reuse()


mode, path = sys.argv[1:]
if mode == "trace":
    tracemalloc.start()
    run()
    snapshot = tracemalloc.take_snapshot()
    found = collections.Counter((trace.traceback[0].lineno, trace.size)
                                for trace in snapshot.traces
                                if trace.traceback[0].filename == __file__)
    with open(path, "w") as file:
        for (line, size), count in found.items():
            print(line, size, count, file=file)
else:
    run()
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc_usable_size.restype = ctypes.c_size_t
    libc.malloc_usable_size.argtypes = libc.free.argtypes = [ctypes.c_void_p]

    def rounded(size):
        block = libc.malloc(ctypes.c_size_t(max(size, 1)))
        held = libc.malloc_usable_size(block)
        libc.free(block)
        return held

    def lines_of(function):
        return {line for _, line in dis.findlinestarts(function.__code__)}

    told = collections.defaultdict(lambda: [0, 0])
    for line in open(path):
        line, size, count = map(int, line.split())
        told[line][0] += rounded(size) * count
        told[line][1] += count
    for function in work, reuse:
        for line in sorted(lines_of(function) & told.keys()):
            if told[line][1] >= COUNT:
                print(*told[line], line, function.__name__, __file__, sep="\t")
    print("ready", flush=True)
    sys.stdin.read(1)
