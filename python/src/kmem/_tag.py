"""Tags: names that memory is billed to."""

import ctypes
import sys

from . import _library as library
from ._scope import Scope

# Most tags of a process. The library keeps the names of each for ever.
MOST = 4096
OTHERS = "(other tags)"

# Arguments for the library by name, file and line.
_known = {}


def _argument(name, file, line):
    known = _known.get((name, file, line))
    if known is None:
        known = library.outside(_make, name, file, line)
    return known


def _make(name, file, line, *_scope):
    if len(_known) >= MOST:
        name, file, line = OTHERS, "", 0
    key = name, file, line
    known = _known.get(key)
    if known is None:
        text = [part.encode("utf-8", "surrogateescape") for part in (file, name)]
        static = library.StaticTag(None, text[0], text[1], line, 0)
        # The library knows the tag by its address as long as the process lives. So its memory
        # must not be used again, even after the end of this interpreter.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(static))
        known = _known.setdefault(key, library.argument(ctypes.addressof(static)))
    return known


class tag(Scope):
    """A scope in which the calling thread's allocations are billed to a name.

    Its row in the books has the name in place of a function, and the file and line of this call.
    Use it as a context manager, or as a decorator of a function or an `async def` function.
    """

    def __init__(self, name):
        super().__init__()
        if not isinstance(name, str):
            raise TypeError("kmem: the name of a tag is a str, not {!r}".format(name))
        if not name or "\0" in name:
            raise ValueError("kmem: the name of a tag is not empty, and has no zero character")
        self.name = self._tag_name = name
        if library.active():
            caller = sys._getframe(1)
            self._tag_argument = _argument(name, caller.f_code.co_filename, caller.f_lineno)

    def __repr__(self):
        return "kmem.tag({!r})".format(self.name)
