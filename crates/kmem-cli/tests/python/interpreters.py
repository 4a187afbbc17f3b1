"""Runs an interpreter in each of four threads at once. They hold memory, and the program tells
`BYTES OBJECTS LINE FUNCTION FILE` of it."""
import ctypes
import sys
import threading

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

usable = ctypes.CDLL(None).malloc_usable_size
usable.restype = ctypes.c_size_t
usable.argtypes = [ctypes.c_void_p]
COUNT = 400
program = """
import time
kept = [None] * 400
def within():
    for i in range(400):
        kept[i] = bytes(900)
        if i % 20 == 0:
            time.sleep(0.0001)
within()
"""
others = []


def run():
    # Before 3.12, the state of a thread has the number of the thread that made the interpreter.
    other = interpreters.create()
    others.append(other)
    interpreters.run_string(other, program)


# From 3.12 on, each interpreter has a lock of its own.
threads = [threading.Thread(target=run) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
text = bytes(900)
file = "<script>" if sys.version_info >= (3, 14) else "<string>"
print(usable(id(text)) * COUNT * 4, COUNT * 4, 6, "within", file, sep="\t")
print("ready", flush=True)
sys.stdin.read(1)
