# Reaches the limit of a group, and asks for more in the handler. To leave the handler, CPython asks
# for the number of an instruction, which is an object of its own behind the first 256.
import ctypes

library = ctypes.PyDLL(None)
library.kmem_group_create.restype = ctypes.c_int64
library.kmem_group_create.argtypes = [ctypes.c_int64, ctypes.c_char_p]
library.kmem_group_set.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_uint64]
library.kmem_group_enter.restype = ctypes.c_int64
library.kmem_group_enter.argtypes = [ctypes.c_int64]
library.kmem_group_leave.argtypes = [ctypes.c_int64]

ROOT = 1 << 14
MAX = 0

group = library.kmem_group_create(ROOT, b"tenant")
assert group >= 0 and library.kmem_group_set(group, MAX, 10 << 20) == 0


class Scope:
    def __enter__(self):
        self.token = library.kmem_group_enter(group)

    def __exit__(self, *failure):
        library.kmem_group_leave(self.token)


WORK = """
for make in kinds:
    kept = []
    try:
        with Scope():
            try:
                while True:
                    kept.append(make())
            except MemoryError as failure:
                sizes.append(len(kept))
    except MemoryError:
        pass
    refused += 1
"""
kinds = [lambda: {1: 2}, lambda: "x" * 100, lambda: [None] * 30, lambda: 2.5 * len(kept)]
sizes = []
refused = 0
exec("x = 0\n" * 300 + WORK)
print(refused)
