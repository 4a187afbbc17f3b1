import asyncio
import contextvars
import sys
import threading

import pytest

import kmem

# Bytes of the library's classes for the memory of a bytearray of 2000, and for its object.
BUFFER, OBJECT = 2048, 64


def held(name):
    row = kmem.snapshot().tagged(name)
    return row.bytes, row.objects


def check(name, bytes, objects):
    """Checks what a tag holds."""
    more_bytes, more_objects = (have - want for have, want in zip(held(name), (bytes, objects)))
    # Up to 3.10 the interpreter keeps frames of functions, and caches of their code.
    most = (0, 0) if sys.version_info >= (3, 11) else (32768, 300)
    assert 0 <= more_bytes <= most[0] and 0 <= more_objects <= most[1], held(name)


def fill(rows, count, size=2000):
    """Puts blocks into a list that has room, so that nothing else is allocated."""
    for number in range(count):
        rows[number] = bytearray(size)


def warm():
    """Has the interpreter allocate what it keeps for `fill`."""
    with kmem.tag("warm"):
        fill([None] * 3, 3)


def test_a_tag_holds_exactly_what_its_block_allocates():
    warm()
    rows = [None] * 100
    with kmem.tag("exact"):
        fill(rows, 100)
    check("exact", 100 * (BUFFER + OBJECT), 200)
    del rows[50:]
    check("exact", 50 * (BUFFER + OBJECT), 100)


def test_the_row_of_a_tag_says_where_it_is():
    first = test_the_row_of_a_tag_says_where_it_is.__code__.co_firstlineno
    with kmem.tag("place"):
        block = bytearray(100000)
    (row,) = [row for row in kmem.snapshot() if row.function == "place"]
    assert row.file == __file__ and row.line == first + 2 and len(block) < row.bytes


def test_the_innermost_tag_holds_the_memory():
    warm()
    rows = [[None] * 10 for _ in range(3)]
    inside = kmem.tag("inner")
    with kmem.tag("outer"):
        fill(rows[0], 10)
        with inside:
            inner = kmem.current_tag()
            fill(rows[1], 10)
        outer = kmem.current_tag()
        fill(rows[2], 10)
    assert (inner, outer, kmem.current_tag()) == ("inner", "outer", None)
    check("inner", 10 * (BUFFER + OBJECT), 20)
    check("outer", 20 * (BUFFER + OBJECT), 40)


def test_a_decorated_function_bills_to_its_tag():
    warm()
    rows = [None] * 10

    @kmem.tag("decorated")
    def work(count, size=2000):
        fill(rows, count, size)
        return count

    assert work(10, size=2000) == 10 and work.__name__ == "work"
    # The interpreter may keep something of a first call with names.
    assert 0 <= held("decorated")[0] - 10 * (BUFFER + OBJECT) < 1024


def test_a_generator_has_its_tag_while_it_runs_only():
    @kmem.tag("generator")
    def numbers():
        for number in range(3):
            assert kmem.current_tag() == "generator"
            yield number

    for number in numbers():
        assert kmem.current_tag() is None
    assert list(numbers()) == [0, 1, 2]


def test_an_exception_ends_the_scope():
    with pytest.raises(KeyError):
        with kmem.tag("raises"):
            raise KeyError
    assert kmem.current_tag() is None
    block = bytearray(100000)
    # The test keeps the exception.
    assert held("raises")[0] < 4096 < len(block)


def test_a_thread_has_scopes_of_its_own():
    warm()
    rows = [[None] * 100 for _ in range(4)]
    started = threading.Barrier(4)

    def work(number):
        started.wait()
        with kmem.tag("thread {}".format(number)):
            fill(rows[number], 100)

    with kmem.tag("starter"):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        bytes, _ = held("thread {}".format(number))
        # A new thread may be the first to need a frame of the interpreter.
        assert 0 <= bytes - 100 * (BUFFER + OBJECT) < 4096


def test_names_are_texts():
    for name in ("", "a\0b"):
        with pytest.raises(ValueError):
            kmem.tag(name)
    with pytest.raises(TypeError):
        kmem.tag(1)
    with kmem.tag("größer"):
        block = bytearray(100000)
    assert held("größer")[0] > len(block)


def test_tags_beyond_the_most_share_one(monkeypatch):
    from kmem import _tag

    monkeypatch.setattr(_tag, "MOST", 0)
    with kmem.tag("one too many"):
        block = bytearray(100000)
    assert held("one too many") == (0, 0)
    assert held("(other tags)")[0] > len(block)


# -- Coroutines ------------------------------------------------------------------------------------


def test_tasks_that_take_turns_hold_exactly_their_own():
    warm()
    rows = {"a": [None] * 100, "b": [None] * 100}

    async def work(name, tag):
        for number in range(100):
            assert kmem.current_tag() == tag
            rows[name][number] = bytearray(2000 if name == "a" else 4000)
            await asyncio.sleep(0)
        return name

    async def main(suffix):
        decorated = kmem.tag("task a" + suffix)(work)
        assert asyncio.iscoroutinefunction(decorated)
        second = kmem.scoped(work("b", "task b" + suffix), kmem.tag("task b" + suffix))
        return await asyncio.gather(decorated("a", "task a" + suffix), second)

    # The first run has the interpreter allocate what it keeps.
    asyncio.run(main(" first"))
    rows["a"], rows["b"] = [None] * 100, [None] * 100
    assert asyncio.run(main("")) == ["a", "b"]
    check("task a", 100 * (BUFFER + OBJECT), 200)
    check("task b", 100 * (4096 + OBJECT), 200)
    assert kmem.current_tag() is None


def test_an_exception_and_a_cancellation_reach_the_coroutine():
    seen = []

    @kmem.tag("cancelled")
    async def work():
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            seen.append(kmem.current_tag())
            raise

    async def main():
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]


def test_a_task_inherits_the_name_but_not_the_scope():
    async def child():
        return kmem.current_tag(), bytearray(100000)

    async def main():
        with kmem.tag("parent"):
            task = asyncio.ensure_future(child())
        return await task

    name, block = asyncio.run(main())
    assert name == "parent" and block
    assert held("parent")[0] < len(block)


def test_blocks_that_overlap_at_an_await_raise_and_then_close():
    first_entered, second_entered = [], []

    async def main():
        both = asyncio.Event()
        done = asyncio.Event()

        async def first():
            with kmem.tag("first"):
                first_entered.append(1)
                await both.wait()

        async def second():
            with kmem.tag("second"):
                both.set()
                await done.wait()

        tasks = [asyncio.ensure_future(first()), asyncio.ensure_future(second())]
        with pytest.raises(kmem.ScopeError, match="decorate the coroutine function"):
            await tasks[0]
        done.set()
        await tasks[1]

    asyncio.run(main())
    block = bytearray(100000)
    for name in ("first", "second"):
        assert held(name)[0] < len(block)


def test_a_scope_that_is_left_on_another_thread_raises():
    scope = kmem.tag("elsewhere")
    scope.__enter__()
    raised = []

    def leave():
        try:
            scope.__exit__(None, None, None)
        except kmem.ScopeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(leave,))
    thread.start()
    thread.join()
    assert "on another thread" in raised[0]
    # The next scope of its own thread closes it.
    with kmem.tag("next"):
        pass
    block = bytearray(100000)
    assert held("elsewhere")[0] < len(block)


def test_no_asynchronous_generator_is_decorated():
    async def numbers():
        yield 1

    with pytest.raises(TypeError, match="asynchronous generator"):
        kmem.tag("x")(numbers)
    with pytest.raises(TypeError, match="no coroutine"):
        kmem.scoped(1, kmem.tag("x"))
