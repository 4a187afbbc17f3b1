"""Holds memory that it knows. Prints `BYTES OBJECTS LINE FUNCTION FILE` of each line, then `ready`."""
import ctypes
import os
import resource
import sys
import threading

usable = ctypes.CDLL(None).malloc_usable_size
usable.restype = ctypes.c_size_t
usable.argtypes = [ctypes.c_void_p]


def bytes_of(texts):
    return sum(usable(id(text)) for text in texts)


lines = open(__file__).read().split("\n")


def tell(texts, mark, function, file=__file__):
    line = mark if isinstance(mark, int) else 1 + next(
        number for number, line in enumerate(lines) if line.endswith("# " + mark))
    print(bytes_of(texts), len(texts), line, function, file, sep="\t")


count = 500
seed = b"x"
zeroed = [None] * count
filled = [None] * count
made = [None] * count
yielded = [None] * count
threaded = [None] * 4 * count
scripted = [None] * 100


def zeroes():
    for i in range(count):
        zeroed[i] = bytes(1000)  # zeroes


class Holder:
    def fill(self):
        for i in range(count):
            filled[i] = seed * 310  # fill


def numbers():
    for i in range(count):
        yield seed * 450  # numbers


def work(number):
    for i in range(count):
        threaded[number * count + i] = bytes(2000)  # work


QUALIFIED = sys.version_info >= (3, 11)
zeroes()
Holder().fill()
for i, text in enumerate(numbers()):
    yielded[i] = text
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
exec(compile("\n\ndef run():\n  for i in range(count):\n    made[i] = bytes(700)\nrun()", "made.py", "exec"))

tell(zeroed, "zeroes", "zeroes")
tell(filled, "fill", "Holder.fill" if QUALIFIED else "fill")
tell(yielded, "numbers", "numbers")
tell(threaded, "work", "work")
tell(made, 5, "run", "made.py")
# Code objects of equal size, one after the other in the same place, whose lines differ.
for i in range(100):
    exec(compile("\n" * i + "scripted[i] = bytes(3000)", "again.py", "exec"))
for i in range(100):
    tell(scripted[i:i + 1], i + 1, "<module>", "again.py")
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
other = interpreters.create()
interpreters.run_string(other, """
import ctypes
usable = ctypes.CDLL(None).malloc_usable_size
usable.restype = ctypes.c_size_t
usable.argtypes = [ctypes.c_void_p]
kept = [None] * 80
def within():
    for i in range(80):
        kept[i] = bytes(900)
within()
print(sum(usable(id(text)) for text in kept), 80, 9, "within", "<string>", sep="\\t", flush=True)
""" if sys.version_info < (3, 12) else """
kept = [None] * 80
def within():
    for i in range(80):
        kept[i] = bytes(900)
within()
""")
if sys.version_info >= (3, 12):
    file = "<script>" if sys.version_info >= (3, 14) else "<string>"
    print(bytes_of([bytes(900)]) * 80, 80, 5, "within", file, sep="\t")
print("ready", flush=True)
if sys.stdin.read(1) == "a":
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
    os.abort()
