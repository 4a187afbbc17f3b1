"""Holds memory of a library, and checks the rows of its lines: holds.py NAME KMEM POOL.

Runs under the library of kmem. Prints what is wrong; the exit code is 1 if anything is.
"""

import json
import os
import subprocess
import sys

COUNT = 2_000_000
failures = []


def dump():
    """Rows of this process. The command itself must not run under the library."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.argv[2], "dump", "--json", "-p", str(os.getpid())]
    output = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL).stdout
    return json.loads(output)["rows"]


def line_of(mark):
    lines = open(__file__).read().splitlines()
    return 1 + next(at for at, line in enumerate(lines) if line.endswith("  # " + mark))


def here(row, mark, module):
    return (row["file"] == __file__ and row["line"] == line_of(mark)
            and module in (row["module"] or ""))


def holds(rows, what, known):
    """Checks that rows have the bytes that are known, and not a tenth more."""
    held = sum(row["bytes"] for row in rows)
    if not known <= held <= 1.1 * known:
        failures.append(f"{what}: {held} bytes, not {known}: {rows}")


def numpy():
    import numpy

    array = numpy.empty(COUNT)  # array
    zeroed = numpy.zeros((1000, 500), dtype="complex128")  # zeroed
    small = [numpy.arange(100, dtype="int64") for _ in range(5000)]  # small
    total = array + 1.0  # total
    ones = numpy.ones(COUNT)
    rows = dump()
    for mark, known in [("array", array.nbytes), ("zeroed", zeroed.nbytes),
                        ("total", total.nbytes)]:
        holds([row for row in rows if here(row, mark, "multiarray")], mark, known)
    of_small = [row for row in rows if here(row, "small", "multiarray")]
    # The object of each array, too.
    calls = sum(row["calls"] for row in of_small)
    if not len(small) <= calls <= 2 * len(small) + 10:
        failures.append(f"small: {calls} objects, not {len(small)}")
    # A function of numpy that is Python itself has its own line.
    of_numpy = [row for row in rows
                if row["function"] == "ones" and "/numpy/" in (row["file"] or "")]
    holds(of_numpy, "ones", ones.nbytes)


def pandas():
    import numpy
    import pandas

    frame = pandas.DataFrame({"one": numpy.arange(COUNT)})
    columns = {"two": numpy.random.random(COUNT)}  # column
    frame["two"] = columns["two"]
    before = dump()
    twice = frame * 2
    rows = dump()
    holds([row for row in rows if here(row, "column", "")], "column", 8 * COUNT)

    def of_pandas(rows):
        return sum(row["bytes"] for row in rows if "/pandas/" in (row["file"] or ""))
    more = of_pandas(rows) - of_pandas(before)
    if not twice.size * 8 <= more <= 1.1 * twice.size * 8:
        failures.append(f"twice: {more} bytes, not {twice.size * 8}")


def pyarrow():
    import pyarrow

    pool = pyarrow.default_memory_pool()
    if pool.backend_name != sys.argv[3]:
        failures.append(f"the pool is {pool.backend_name}, not {sys.argv[3]}")
    array = pyarrow.array(list(range(COUNT)))  # values
    rows = dump()
    of_line = [row for row in rows if here(row, "values", "libarrow.so")]
    mapped = [row for row in of_line if row["kind"] == "mapping"]
    objects = [row for row in of_line if row["kind"] != "mapping"]
    if pool.backend_name == "system":
        holds(objects, "values", array.nbytes)
    else:
        # The pool cuts its buffers from memory that it maps, and kmem sees what it maps.
        if sum(row["mapped"] for row in mapped) < array.nbytes:
            failures.append(f"the pool mapped {mapped}")
        if sum(row["bytes"] for row in objects) > array.nbytes // 10:
            failures.append(f"the pool's buffers are objects: {objects}")


if __name__ == "__main__":
    {"numpy": numpy, "pandas": pandas, "pyarrow": pyarrow}[sys.argv[1]]()
    for failure in failures:
        print(f"{' '.join(sys.argv[1:])}: {failure}")
    sys.exit(bool(failures))
