"""Groups: tenants that pay for memory, with limits."""

import ctypes
import errno

from . import _library as library
from ._scope import Scope
from ._text import size


class Group(Scope):
    """A group of the process, which is found or made below its parent.

    Use it as a context manager, or as a decorator: the group pays for the calling thread's
    allocations. Above `max`, Python raises `MemoryError`. Limits are bytes, or text as "64M";
    None is no limit, and leaves the limits of a group that exists as they are.
    """

    def __init__(self, name, max=None, high=None, parent=None):
        super().__init__()
        self.name = name
        self.parent = parent
        self.path = name if parent is None else parent.path + "/" + name
        self._id = None
        if library.active():
            self._id = self._find_or_create()
            self._group_argument = library.argument(self._id)
        for limit, value in ((library.MAX, max), (library.HIGH, high)):
            if value is not None:
                self._set(limit, value)

    def _find_or_create(self):
        parent = library.ROOT if self.parent is None else self.parent._id
        made = library.group_create(parent, self.name.encode())
        if made == -errno.EEXIST:
            made = library.group_find(self.path.encode())
        return library.check(made, "make the group {!r}".format(self.path))

    def _prepare(self):
        self._stat()

    def _stat(self):
        stat = library.Stat(ctypes.sizeof(library.Stat))
        if self._id is not None:
            result = library.group_stat(self._id, ctypes.addressof(stat))
            library.check(result, "read the group {!r}".format(self.path))
        return stat

    def _set(self, limit, value):
        limit_bytes = library.NO_LIMIT if value is None else size(value)
        if self._id is not None:
            result = library.group_set(self._id, limit, limit_bytes)
            library.check(result, "set a limit of the group {!r}".format(self.path))

    def _limit(self, value):
        return None if self._id is None or value == library.NO_LIMIT else value

    @property
    def max(self):
        """Bytes above which requests are refused; None for no limit."""
        return self._limit(self._stat().max)

    @max.setter
    def max(self, value):
        self._set(library.MAX, value)

    @property
    def high(self):
        """Bytes above which the group's shrinkers are called; None for no limit."""
        return self._limit(self._stat().high)

    @high.setter
    def high(self, value):
        self._set(library.HIGH, value)

    @property
    def current(self):
        """Bytes of live allocations of the group and of the groups below it."""
        return self._stat().current

    @property
    def peak(self):
        """The highest use since the group was made, or since `reset_peak`, in bytes."""
        return self._stat().peak

    def reset_peak(self):
        """Makes the present use the peak."""
        if self._id is not None:
            result = library.group_reset_peak(self._id)
            library.check(result, "reset the peak of the group {!r}".format(self.path))

    @property
    def events(self):
        """Counts of events by name, as in `memory.events`: low, high, max and oom."""
        stat = self._stat()
        return {name: getattr(stat, name + "_events") for name in ("low", "high", "max", "oom")}

    def delete(self):
        """Deletes the group: its parent pays for its memory from then on."""
        if self._id is not None:
            result = library.group_delete(self._id)
            library.check(result, "delete the group {!r}".format(self.path))

    def __repr__(self):
        return "kmem.Group({!r})".format(self.path)


def group(name, max=None, high=None, parent=None):
    """Returns the group of that name below the parent, made where there is none."""
    return Group(name, max=max, high=high, parent=parent)


class _Root(Group):
    """The root group, which pays for snapshots."""

    def _find_or_create(self):
        return library.ROOT

    def _prepare(self):
        pass


ROOT_GROUP = _Root("")

# Up to 3.10 the interpreter allocates a function's frame at its first call, and keeps it. A group at
# its limit could not pay for the frames of leaving it.
with ROOT_GROUP:
    pass
