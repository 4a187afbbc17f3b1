"""Starts a worker in the way of METHOD: workers.py METHOD. The worker holds memory, and tells its
PID, then `BYTES OBJECTS LINE FUNCTION FILE` of each of its lines. `fork` is `os.fork`; the others
are those of multiprocessing, after `multiprocessing.`."""
import ctypes
import multiprocessing
import os
import sys

usable = ctypes.CDLL(None).malloc_usable_size
usable.restype = ctypes.c_size_t
usable.argtypes = [ctypes.c_void_p]
lines = open(__file__).read().split("\n")
before = [None] * 300
after = [None] * 200


def tell(texts, mark, function):
    line = 1 + next(at for at, line in enumerate(lines) if line.endswith("# " + mark))
    held = sum(usable(id(text)) for text in texts)
    print(held, len(texts), line, function, __file__, sep="\t")


def fill():
    for i in range(len(before)):
        before[i] = bytes(1500)  # before


def work(has_all):
    for i in range(len(after)):
        after[i] = bytes(2500)  # after
    # A fork of this process, or of a server without its memory.
    tell(after, "after", "work")
    if has_all:
        tell(before, "before", "fill")
    print(os.getpid(), "ready", sep="\n", flush=True)


def serve(has_all):
    work(has_all)
    multiprocessing.parent_process().join()


if __name__ == "__main__":
    method = sys.argv[1]
    fill()
    if method == "fork":
        reader, writer = os.pipe()
        if not os.fork():
            os.close(writer)
            work(True)
            os.read(reader, 1)
            os._exit(0)
    else:
        context = multiprocessing.get_context(method.split(".")[1])
        context.Process(target=serve, args=(method.endswith(".fork"),)).start()
    sys.stdin.read(1)
    # A worker ends when it sees that this process is gone.
    os._exit(0)
