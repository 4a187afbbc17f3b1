"""Scopes of threads and of coroutines.

A thread's scopes are a stack in the library, and a stack of `_Entry` here. Bookkeeping is done in
the root group and without a tag: no scope pays for it, and no limit refuses it. The last calls
into a scope and the first ones out of it allocate nothing that stays.
"""

import collections.abc
import contextvars
import functools
import inspect
import threading

from . import _library as library

_names = contextvars.ContextVar("kmem tags", default=())


class ScopeError(RuntimeError):
    """A scope was left on another thread than its own, or before one inside it."""


class _Thread(threading.local):
    def __init__(self):
        self.entries = []


_thread = _Thread()

# Bytes that are freed before a group is left: the interpreter needs a few to call a function, and
# the group may have none left.
_SPARE = 512


class _Entry:
    """An open scope of a thread."""

    __slots__ = ("scope", "entries", "tag_before", "token", "names", "is_dead", "spare")


def current_tag():
    """Returns the name of the innermost tag of this context, or None."""
    names = _names.get()
    return names[-1] if names else None


class Scope:
    """Base of tags and groups: a context manager and a decorator.

    One object may be entered many times, by any threads.
    """

    # Name for `current_tag`; None for a group.
    _tag_name = None
    # The prepared argument that the library enters: of a tag, or of a group.
    _tag_argument = None
    _group_argument = None

    def __init__(self):
        self._open = []

    def __enter__(self):
        if not library.active():
            if self._tag_name is not None:
                self._open.append(_named(self._tag_name))
            return self
        self._prepare()
        _close_dead(_thread.entries)
        entry = library.outside(self._entry)
        if self._tag_argument is not None:
            library.tag_set(self._tag_argument)
        elif library.group_enter_low_byte(self._group_argument) != entry.token[1]:
            self._abandon(entry)
            raise ScopeError("kmem: {} cannot be entered: it was deleted".format(self))
        else:
            try:
                entry.spare = bytes(_SPARE)
            except MemoryError:
                self.__exit__(None, None, None)
                raise
        return self

    def _prepare(self):
        """Checks that the scope can be entered."""

    def _entry(self, root, tag_before):
        """Makes the entry of a scope. `root` is the token of the thread's latest scope."""
        entries = _thread.entries
        entry = _Entry()
        entry.scope = self
        entry.entries = entries
        entry.is_dead = False
        entry.names = entry.tag_before = entry.token = entry.spare = None
        if self._tag_name is not None:
            entry.names = _named(self._tag_name)
        if self._group_argument is not None:
            # A thread's tokens count up by one, as group.h promises.
            entry.token = library.argument(root + 1), (root + 1) & 0xFF
        entries.append(entry)
        self._open.append(entry)
        if self._tag_argument is not None:
            entry.tag_before = library.argument(tag_before)
        return entry

    def _abandon(self, entry):
        entry.entries.remove(entry)
        self._open.remove(entry)

    def __exit__(self, kind, error, trace):
        if not library.active():
            if self._tag_name is not None:
                _unname(self._open.pop())
            return
        entries = _thread.entries
        if entries and entries[-1].scope is self:
            entries[-1].spare = None
            _close(entries)
            _close_dead(entries)
        else:
            self._misplaced(entries)

    def _misplaced(self, entries):
        """Marks the entry, so that its thread closes it with the one inside it. Raises."""
        own = [entry for entry in self._open if entry.entries is entries]
        entry = (own or self._open or [None])[-1]
        if entry is None:
            raise ScopeError("kmem: {} is left, but not entered".format(self))
        entry.is_dead = True
        self._open.remove(entry)
        _unname(entry.names)
        place = "before a scope inside it" if own else "on another thread than it was entered"
        raise ScopeError(
            "kmem: {} is left {}. In a coroutine, a block with an await is not the task's own: "
            "decorate the coroutine function, or use kmem.scoped(coroutine, ..)".format(self, place)
        )

    def __call__(self, function):
        """Returns the function with its calls in the scope."""
        if inspect.isasyncgenfunction(function):
            raise TypeError("kmem: an asynchronous generator cannot be decorated: its callees can")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args, **kwargs):
                return await scoped(function(*args, **kwargs), self)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return (yield from scoped(function(*args, **kwargs), self))

        else:

            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                with self:
                    return function(*args, **kwargs)

        return wrapper


def _named(name):
    return _names.set(_names.get() + (name,))


def _unname(token):
    if token is None:
        return
    try:
        _names.reset(token)
    except (ValueError, RuntimeError):
        # It was entered in another context, which ends without it.
        pass


def _close(entries):
    """Closes the innermost scope of the calling thread."""
    entry = entries[-1]
    if entry.token is not None:
        library.group_leave(entry.token[0])
    else:
        library.tag_leave(entry.tag_before)
    entries.pop()
    if not entry.is_dead:
        entry.scope._open.remove(entry)
        _unname(entry.names)


def _close_dead(entries):
    while entries and entries[-1].is_dead:
        _close(entries)


class _Steps(collections.abc.Coroutine):
    """A coroutine or generator of which each step runs in scopes."""

    def __init__(self, inner, scopes):
        self._inner = inner
        self._scopes = scopes

    def _step(self, step, *args):
        return self._within(0, step, args)

    def _within(self, depth, step, args):
        if depth == len(self._scopes):
            return step(*args)
        with self._scopes[depth]:
            return self._within(depth + 1, step, args)

    def send(self, value):
        return self._step(self._inner.send, value)

    def throw(self, *error):
        return self._step(self._inner.throw, *error)

    def close(self):
        return self._step(self._inner.close)

    def __next__(self):
        return self.send(None)

    def __iter__(self):
        return self

    def __await__(self):
        return self


def scoped(coroutine, *scopes):
    """Returns a coroutine that enters the scopes before each of its steps, and leaves them after.

    The scopes are tags and groups, outermost first. A generator may take the coroutine's place.
    """
    for scope in scopes:
        if not isinstance(scope, Scope):
            raise TypeError("kmem: {!r} is no tag and no group".format(scope))
    if not hasattr(coroutine, "send"):
        raise TypeError("kmem: {!r} is no coroutine".format(coroutine))
    return _Steps(coroutine, scopes)
