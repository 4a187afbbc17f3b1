"""Allocates while words of its thread state, and of what they lead to, are wrong."""
import ctypes
import mmap
import random
import sys

library = ctypes.PyDLL(sys.argv[1])
api = ctypes.pythonapi
api.PyThreadState_Get.restype = ctypes.c_void_p
state = api.PyThreadState_Get()
library.torment.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p]
make = ctypes.cast(api.PyBytes_FromStringAndSize, ctypes.c_void_p)
drop = ctypes.cast(api.Py_DecRef, ctypes.c_void_p)


def word(at):
    return ctypes.c_ulong.from_address(at).value


def mapped(at):
    return any(start <= at and at + 512 <= end for start, end in ranges)


ranges = []
for line in open("/proc/self/maps"):
    bounds, access = line.split()[:2]
    if access.startswith("rw"):
        ranges.append([int(bound, 16) for bound in bounds.split("-")])

page = mmap.mmap(-1, 4096)
fake = ctypes.addressof(ctypes.c_char.from_buffer(page))
random.seed(1)


def wrongs():
    for i in range(512):
        value = random.choice([random.getrandbits(64), fake + 8 * random.randrange(512), 0, 1])
        ctypes.c_ulong.from_address(fake + 8 * i).value = value
    yield from (0, 1, 7, 4096, 0x10000, 0xdead0000beef, 1 << 47, (1 << 63) + 8, (1 << 64) - 8)
    yield from (fake, fake + 4, fake + 4088, fake + 8 * random.randrange(500))


places = [state + 8 * i for i in range(45)]
# The frame, and the C frame before 3.13, are among what the first words lead to.
for place in list(places[:12]):
    to = word(place)
    if to % 8 == 0 and mapped(to):
        places += [to + 8 * i for i in range(12)]
runtime = ctypes.addressof(ctypes.c_char.in_dll(api, "_PyRuntime"))
places += [at for at in range(runtime, runtime + 2000, 8) if word(at) == state]
count = 0
for _ in range(8):
    for place in places:
        for wrong in wrongs():
            library.torment(place, wrong, make, drop)
            count += 1
print(count)
print("ready", flush=True)
sys.stdin.read(1)
