"""The C interface of the library: include/kmem/tag.h and include/kmem/group.h."""

import ctypes
import os

ROOT = 1 << 14
MAX, HIGH, LOW = 0, 1, 2
NO_LIMIT = (1 << 64) - 1


class KmemError(OSError):
    """A function of kmem could not do its work."""


class StaticTag(ctypes.Structure):
    """struct kmem_alloc_tag"""

    _fields_ = [
        ("module", ctypes.c_char_p),
        ("file", ctypes.c_char_p),
        ("function", ctypes.c_char_p),
        ("line", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


class Stat(ctypes.Structure):
    """struct kmem_group_stat"""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "size current own reserved cached peak max high low "
            "low_events high_events max_events oom_events over_limit"
        ).split()
    ]


# A call through PyDLL keeps the interpreter's lock: these functions do not wait.
_library = ctypes.PyDLL(None)


def _function(name, result, *arguments):
    """Returns a function of the library, or None without the library.

    Each call of this makes an object of its own, so that one function may have two types.
    """
    try:
        address = ctypes.cast(getattr(_library, name), ctypes.c_void_p).value
    except AttributeError:
        return None
    return ctypes.PYFUNCTYPE(result, *arguments)(address)


def _unconverted(name, result):
    """Returns a function whose arguments are from `argument`, so that a call converts none."""
    try:
        function = ctypes.PyDLL(None)[name]
    except AttributeError:
        return None
    function.restype = result
    return function


# Makes an argument ahead of the call that has it.
argument = ctypes.c_uint64.from_param

tag_replace = _function("kmem_tag_enter", ctypes.c_size_t, ctypes.c_void_p)
tag_set = _unconverted("kmem_tag_enter", None)
tag_leave = _unconverted("kmem_tag_leave", None)

group_create = _function("kmem_group_create", ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p)
group_find = _function("kmem_group_find", ctypes.c_int64, ctypes.c_char_p)
group_delete = _function("kmem_group_delete", ctypes.c_int, ctypes.c_int64)
group_set = _function(
    "kmem_group_set", ctypes.c_int, ctypes.c_int64, ctypes.c_int, ctypes.c_uint64
)
group_stat = _function("kmem_group_stat", ctypes.c_int, ctypes.c_int64, ctypes.c_void_p)
group_reset_peak = _function("kmem_group_reset_peak", ctypes.c_int, ctypes.c_int64)
group_enter = _function("kmem_group_enter", ctypes.c_int64, ctypes.c_int64)
# The interpreter has an object for each number below 256, so this result is not allocated.
group_enter_low_byte = _unconverted("kmem_group_enter", ctypes.c_ubyte)
group_leave = _unconverted("kmem_group_leave", ctypes.c_int)


def active():
    """Returns whether the library is loaded in this process."""
    return tag_set is not None


def check(result, doing):
    """Returns the result of a function, or raises `KmemError` if it is an error number."""
    if result < 0:
        raise KmemError(-result, "kmem: cannot {}: {}".format(doing, os.strerror(-result)))
    return result


def outside(function, *args):
    """Calls a function with two more arguments, in the root group and without a tag.

    These are the token of that scope, and the tag before. No scope pays for what the function
    allocates, and no limit refuses it.
    """
    root = group_enter(ROOT)
    before = tag_replace(None)
    try:
        return function(*args, root, before)
    finally:
        tag_leave(argument(before))
        group_leave(argument(root & NO_LIMIT))
