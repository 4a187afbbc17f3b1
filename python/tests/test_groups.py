import asyncio

import pytest

import kmem


def test_at_its_limit_a_group_raises_memory_error(group):
    group.max = "1M"
    with pytest.raises(MemoryError):
        with group:
            bytearray(2 << 20)
    block = bytearray(2 << 20)
    assert group.current < 4096 < len(block)
    assert group.events["oom"] == 1
    assert group.max == 1 << 20 and group.high is None


def test_a_group_pays_until_its_memory_is_freed(group):
    with group:
        block = bytearray(100000)
    # Pages of 4096 bytes with a word each, beside small objects of the interpreter.
    assert 25 * 4100 <= group.current < 27 * 4100
    assert group.peak >= group.current
    del block
    assert group.current < 4096
    group.reset_peak()
    assert group.peak < 100000


def test_small_objects_fill_a_group_and_leave_it(group):
    group.max = 1 << 20

    @group
    def fill(rows):
        while True:
            rows.append({1: 2})

    rows = []
    with pytest.raises(MemoryError):
        fill(rows)
    assert len(rows) > 1000 and group.current > 900000
    more = [{} for _ in range(100000)]
    assert len(more) == 100000 and group.current <= 1 << 20


def test_groups_form_a_tree_and_are_found_again(group):
    child = kmem.group("child", max="2M", high="1M", parent=group)
    again = kmem.group("child", parent=group)
    assert again.path == group.name + "/child"
    assert (again.max, again.high) == (2 << 20, 1 << 20)
    with again:
        block = bytearray(500000)
    assert child.current == again.current > 500000
    assert group.current >= child.current and block
    with pytest.raises(kmem.KmemError):
        group.delete()
    child.delete()
    assert group.current > 500000
    with pytest.raises(kmem.KmemError, match="child"):
        with child:
            pass


def test_an_unknown_name_or_size_is_refused(group):
    with pytest.raises(kmem.KmemError, match="cannot make the group 'a/b'"):
        kmem.group("a/b")
    for wrong in ("x", "1X", -1):
        with pytest.raises(ValueError):
            group.max = wrong


def test_a_group_pays_for_the_steps_of_its_task(group):
    rows = []

    @group
    async def work():
        for _ in range(10):
            rows.append(bytearray(100000))
            await asyncio.sleep(0)

    async def other():
        for _ in range(10):
            rows.append(bytearray(100000))
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(work(), other())

    asyncio.run(main())
    assert len(rows) == 20
    assert 1000000 < group.current < 1100000


def test_tags_and_groups_nest(group):
    with group, kmem.tag("in the group"):
        first = bytearray(100000)
    with kmem.tag("around the group"), group:
        second = bytearray(100000)
    taken = kmem.snapshot()
    assert taken.tagged("in the group").bytes > len(first)
    assert taken.tagged("around the group").bytes > len(second)
    assert 200000 < group.current < 220000


def test_a_snapshot_is_not_paid_by_the_group(group):
    with group:
        before = group.current
        taken = kmem.snapshot()
        assert group.current - before < 4096
    assert len(taken) > 10
