import pytest

import kmem
from kmem._text import shown, size


def test_a_diff_has_the_line_that_grew_and_its_bytes():
    kmem.diff(kmem.snapshot(), kmem.snapshot())
    before = kmem.snapshot()
    blocks = [bytearray(4000) for _ in range(100)]
    grown = kmem.diff(before, kmem.snapshot())
    first = grown.rows[0]
    assert (first.file, first.line) == (__file__, 10)
    assert 100 * 4096 <= first.bytes < 100 * 4096 + 20000 and len(blocks) == 100
    assert first.objects >= 200
    assert all(row.bytes > 0 for row in grown)
    text = str(grown)
    assert text.startswith("+40") and "test_snapshots.py:10" in text


def test_a_snapshot_has_no_memory_of_snapshots():
    kmem.snapshot()
    first = kmem.snapshot()
    kept = [kmem.snapshot() for _ in range(3)]
    grown = kmem.diff(first, kept[-1])
    assert abs(grown.bytes) < 4096, str(grown)


def test_what_became_less_is_in_the_sum_alone():
    blocks = [bytearray(4000) for _ in range(100)]
    before = kmem.snapshot()
    del blocks
    grown = kmem.diff(before, kmem.snapshot())
    assert grown.bytes < -400000
    assert not [row for row in grown if row.file == __file__ and row.bytes > 4096]
    assert str(grown).startswith("-40")


def test_a_snapshot_reads_as_a_table():
    text = str(kmem.snapshot())
    assert "SIZE" in text and "more rows" in text and " objects" in text


def test_without_the_command_the_error_says_what_to_set(monkeypatch):
    monkeypatch.setenv("KMEM", "/nowhere/kmem")
    with pytest.raises(kmem.KmemError, match="environment variable KMEM"):
        kmem.snapshot()


def test_a_command_that_fails_is_quoted(monkeypatch):
    monkeypatch.setenv("KMEM", "/bin/false")
    with pytest.raises(kmem.KmemError, match="/bin/false dump failed"):
        kmem.snapshot()


def test_without_the_library_all_works_and_does_nothing(without_library):
    code = """
import asyncio, kmem
assert not kmem.active()
g = kmem.group("tenant", max="1K")
with g, kmem.tag("a"):
    bytearray(1 << 20)
    assert kmem.current_tag() == "a"
assert kmem.current_tag() is None
@g
@kmem.tag("b")
async def work():
    await asyncio.sleep(0)
    return kmem.current_tag()
assert asyncio.run(work()) == "b"
assert (g.current, g.peak, g.max, g.events["oom"]) == (0, 0, None, 0)
g.delete()
try:
    kmem.snapshot()
except kmem.KmemError as error:
    print(error)
"""
    assert "kmem run -- python3" in without_library(code)


def test_sizes_are_read_and_shown():
    assert [size(text) for text in (5, "1000", "64K", "1.5 MiB", "2gb")] == [
        5,
        1000,
        65536,
        3 << 19,
        2 << 30,
    ]
    for wrong in ("", "M", "1Z", "-1", "nan", "inf"):
        with pytest.raises(ValueError):
            size(wrong)
    assert [shown(count) for count in (0, -5, 1023, 1024, -3 << 19, 5 << 50)] == [
        "0 B",
        "-5 B",
        "1023 B",
        "1.0 KiB",
        "-1.5 MiB",
        "5120.0 TiB",
    ]
