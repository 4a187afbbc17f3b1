"""Snapshots of what the process holds, and their differences."""

import collections
import os
import shutil

from . import _library as library
from ._group import ROOT_GROUP
from ._tag import tag
from ._text import shown

Row = collections.namedtuple("Row", "bytes objects function file line module")
Row.__doc__ = "Live bytes and objects of a call site: a line of Python, a tag, or a line of C."

# Memory of the package itself, which no snapshot has.
_OWN = tag("(snapshots of kmem)")

_SHOWN = 10


def _where(row):
    if row.file:
        return "{}:{}".format(row.file, row.line)
    return row.module or ""


def _table(title, rows, sign=""):
    lines = [title, "{:>12} {:>9}  {:<30} WHERE".format("SIZE", "OBJECTS", "FUNCTION")]
    for row in rows[:_SHOWN]:
        size = "{:{}}".format(row.bytes, sign) if abs(row.bytes) < 1024 else None
        size = sign * (row.bytes > 0) + shown(row.bytes) if size is None else size + " B"
        objects = "{:{}}".format(row.objects, sign)
        lines.append(
            "{:>12} {:>9}  {:<30} {}".format(size, objects, row.function or "", _where(row))
        )
    if len(rows) > _SHOWN:
        rest = rows[_SHOWN:]
        total = sum(row.bytes for row in rest)
        objects = sum(row.objects for row in rest)
        lines.append("{:>12} {:>9}  (in {} more rows)".format(shown(total), objects, len(rest)))
    return "\n".join(lines)


class Snapshot:
    """Rows of a process at one moment, largest first."""

    def __init__(self, rows):
        self.rows = sorted(rows, key=lambda row: -row.bytes)

    @property
    def bytes(self):
        """Live bytes of all rows."""
        return sum(row.bytes for row in self.rows)

    @property
    def objects(self):
        """Live objects of all rows."""
        return sum(row.objects for row in self.rows)

    def tagged(self, name):
        """Returns the sum of the rows of a tag, or of a function."""
        rows = [row for row in self.rows if row.function == name]
        total = sum(row.bytes for row in rows), sum(row.objects for row in rows)
        return Row(total[0], total[1], name, None, None, None)

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)

    def __str__(self):
        title = "{} in {} objects".format(shown(self.bytes), self.objects)
        return _table(title, self.rows)


class Diff:
    """Rows that grew between two snapshots, the one that grew most first."""

    def __init__(self, rows, bytes, objects):
        self.rows = sorted(rows, key=lambda row: -row.bytes)
        # The difference of all rows, of those that became smaller, too.
        self.bytes = bytes
        self.objects = objects

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)

    def __str__(self):
        sign = "+" if self.bytes > 0 else ""
        title = "{}{} in {:+} objects".format(sign, shown(self.bytes), self.objects)
        return _table(title, self.rows, "+")


def _command():
    """Returns the path of the `kmem` command."""
    named = os.environ.get("KMEM")
    found = shutil.which(named or "kmem")
    if found is None:
        raise library.KmemError(
            "kmem: there is no command {!r}. Install kmem, or set the environment variable KMEM "
            "to the path of the command".format(named or "kmem")
        )
    return found


def _dump():
    import json
    import subprocess

    command = _command()
    # The command needs no library, and no options of this process.
    hidden = ("LD_PRELOAD", "KMEM_CONF", "PYTHONMALLOC")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [command, "dump", "-p", str(os.getpid()), "--format", "json", "--no-mmap"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise library.KmemError("kmem: {} dump failed: {}".format(command, said))
    return json.loads(done.stdout.decode())["rows"]


def snapshot():
    """Returns what this process holds, by running the `kmem` command on it.

    The command is that of the environment variable KMEM, or the first `kmem` in PATH. Memory of
    snapshots is not in them, and no group pays for it.
    """
    if not library.active():
        raise library.KmemError(
            "kmem: the library is not loaded in this process: start it with `kmem run -- python3 ..`"
        )
    with ROOT_GROUP, _OWN:
        sums = {}
        for row in _dump():
            key = row["function"], row["file"], row["line"], row["module"]
            if key[0] == _OWN.name:
                continue
            bytes, objects = sums.get(key, (0, 0))
            sums[key] = bytes + row["bytes"], objects + row["calls"]
        return Snapshot([Row(*(total + key)) for key, total in sums.items()])


def diff(before, after):
    """Returns the rows that grew from one snapshot to another."""
    with ROOT_GROUP, _OWN:
        old = {row[2:]: row for row in before.rows}
        grown = []
        for row in after.rows:
            was = old.get(row[2:])
            bytes = row.bytes - (was.bytes if was else 0)
            objects = row.objects - (was.objects if was else 0)
            if bytes > 0:
                grown.append(row._replace(bytes=bytes, objects=objects))
        return Diff(grown, after.bytes - before.bytes, after.objects - before.objects)
