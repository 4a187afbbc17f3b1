"""Checks reports of `kmem run` on trees of processes: check.py NAME REPORT [NUMBER..].

Prints what is wrong. The exit code is 1 if anything is.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# A record is within 5 % of the peak. A killed process may hold 3 % and 256 KiB more.
NEAR = 0.90

failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)


def size(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


class Row:
    def __init__(self, found):
        self.bytes = size(found["size"])
        self.mapped = found["objects"] == "mapped"
        self.is_caller = bool(found["of"])
        self.function, self.place = found["function"], found["place"]


class Section:
    """One program: its title, and the rows of its first table."""

    def __init__(self, title):
        self.title, self.rows, self.inherited, self.tables = title, [], 0, 0
        self.is_command = title.endswith(", the command:")
        self.name = title.split(" (")[0]
        found = re.search(r"\((\d+) (?:processes|runs)", title)
        self.count = int(found[1]) if found else 1
        self.is_former = "by exec" in title
        found = re.search(r": ([0-9.]+ \w+)(?:,| at its peak)", title)
        self.bytes = size(found[1]) if found else 0

    def of(self, place):
        """Bytes of the rows of a place, without those of its callers."""
        return sum(r.bytes for r in self.rows if r.place.endswith(place) and not r.is_caller)


class Report:
    ROW = re.compile(r" *(?P<size>[0-9.]+ [KMG]?i?B) +(?P<objects>\d+|mapped)  (?P<of>  from )?"
                     r"(?P<function>\S.*?) {2,}(?P<place>\S.*)$")

    def __init__(self, path):
        self.text = Path(path).read_text()
        self.sections, self.smaller, self.smaller_count = [], "", 0
        for line in self.text.splitlines():
            if found := re.match(r"and (\d+) smaller process(?:es)?: (.*) held at most", line):
                self.smaller_count, self.smaller = int(found[1]), found[2]
            elif re.match(r"\S+ \((pid )?\d+.*\)[,:]", line):
                self.sections.append(Section(line))
            elif found := re.match(r"  \(up to (.*) inherited by fork", line):
                self.sections[-1].inherited = size(found[1])
            elif not self.sections:
                # A command that is alone has no title.
                continue
            elif line.lstrip().startswith("SIZE ") or line.lstrip().startswith("RESIDENT "):
                self.sections[-1].tables += 1
            elif self.sections[-1].tables == 1 and (row := self.ROW.match(line)):
                self.sections[-1].rows.append(Row(row))

    def first(self):
        return self.sections[0]

    def named(self, name, former=False):
        return [s for s in self.sections if s.name == name and s.is_former == former]

    def one(self, name):
        """The only section of a program which is not that of the command."""
        found = [s for s in self.named(name) if not s.is_command]
        expect(len(found) == 1, f"{len(found)} sections of {name}")
        return found[0] if found else Section(name)

    def merged(self):
        """No program has two sections, but for the command and for those before an exec."""
        keys = [(s.name, s.is_command, s.is_former) for s in self.sections]
        expect(len(keys) == len(set(keys)), f"a program has several sections: {keys}")
        names = [re.sub(r" \(\d+\)$", "", name) for name in self.smaller.split(", ")]
        expect(len(names) == len(set(names)), f"a name comes several times: {self.smaller}")


def holds(file, place=""):
    """A place in a source, and the bytes that one run of it holds."""
    for number, line in enumerate((HERE / file).read_text().splitlines(), 1):
        if (found := re.search(r"# holds (\d+)$", line)) and place in line:
            return f"{file}:{number}", int(found[1])
    raise ValueError(f"{file} has no such line")


def near(measured, known, what):
    expect(NEAR * known <= measured <= 1.05 * known, f"{what}: {measured:.0f}, not {known}")


def make(path, compilations):
    report = Report(path)
    report.merged()
    first = report.first()
    expect(first.name == "cc1" and first.count == compilations, f"first is {first.title}")
    expect(not re.match("x?malloc|xcalloc|ggc_", first.rows[0].function),
           f"the first row of cc1 is {first.rows[0].function}")
    counts = sum(s.count for s in report.sections if not s.is_former) + report.smaller_count
    # make, the compiler's driver, cc1 and as for each source; a driver, collect2 and ld at last.
    expect(counts >= 1 + 3 * compilations + 3, f"the report has {counts} processes")


def only(path, name):
    report = Report(path)
    expect({s.name for s in report.sections} == {name}, "other programs are shown, too")
    expect(not report.smaller, "the others are counted")


def all_of(path):
    report = Report(path)
    report.merged()
    expect(not report.smaller, f"not all are shown: {report.smaller}")
    expect({"bash", "expr"} <= {s.name for s in report.sections}, "bash or expr is missing")
    expect(report.one("expr").count == 20, f"{report.one('expr').title}, not 20")


def fork(path, python):
    report = Report(path)
    report.merged()
    command, workers = report.first(), report.one(python)
    expect(command.is_command, f"first is {command.title}")
    expect(workers.count == 4, workers.title)
    place, known = holds("workers.py", "data =")
    near(command.of(place), known, "data of the parent")
    expect(workers.of(place) == 0, "data of the parent count for the workers, too")
    expect(workers.inherited >= known, f"the workers inherited {workers.inherited:.0f}")
    place, known = holds("workers.py", "mine =")
    near(workers.of(place), 4 * known, "data of the workers")
    near(workers.bytes, 4 * known, "all of the workers")
    expect(command.of(place) == 0, "data of the workers count for the parent, too")


def spawn(path, python):
    report = Report(path)
    report.merged()
    place, known = holds("workers.py", "data =")
    command = next(s for s in report.sections if s.is_command)
    near(command.of(place), known, "data of the parent")
    workers = report.one(python)
    # Python itself starts one more, which tracks semaphores.
    expect(workers.count == 5, workers.title)
    expect(workers.inherited == 0, "nothing is inherited across an exec")
    expect(workers.of(place) == 0, "data of the parent count for the workers, too")
    place, known = holds("workers.py", "mine =")
    near(workers.of(place), 4 * known, "data of the workers")
    expect(workers.rows[0].place.endswith(place), f"first is {workers.rows[0].place}")


def postgresql(path, sessions):
    report = Report(path)
    report.merged()
    workers = report.first()
    expect(workers.name == "postgres" and not workers.is_command, f"first is {workers.title}")
    # The checkpointer, the writers, the launchers, and a process for each session.
    expect(workers.count >= 5 + sessions, workers.title)
    of_query = {"array_out", "text_to_cstring", "textin", "construct_md_array"}
    expect(of_query & {r.function for r in workers.rows}, "no row is of the query")
    shared = [s.title for s in report.sections
              for r in s.rows if r.function == "PGSharedMemoryCreate"]
    expect(len(shared) == 1 and shared[0].endswith("the command:"),
           f"shared memory is that of {shared}")


def gunicorn(path, python, requests, workers):
    report = Report(path)
    report.merged()
    first = report.first()
    expect(not first.is_command and first.name == python and first.count == workers,
           f"first is {first.title}")
    place, known = holds("service.py")
    row = first.rows[0]
    expect(row.function == "application" and row.place.endswith(place),
           f"first is {row.function} {row.place}")
    near(row.bytes, requests * known, "the leak")
    expect(first.inherited > 0, "the workers inherited nothing")


def limited(path, python, limit):
    report = Report(path)
    first = report.first()
    expect(first.name == python, f"first is {first.title}")
    place, _ = holds("service.py", "grown")
    row = first.rows[0]
    expect(row.function == "application" and row.place.endswith(place),
           f"first is {row.function} {row.place}")
    # The rest are the server, and the interpreters of both.
    expect(limit / 2 <= row.bytes <= limit, f"the leak: {row.bytes:.0f}, with a limit of {limit}")


def shims(path, python):
    report = Report(path)
    report.merged()
    first = report.first()
    expect(first.name == python and first.rows[0].place == "<string>:1", f"first is {first.title}")
    lines = [line for line in report.text.splitlines()[2:] if re.match(r"(\S+ )*bash\b", line)]
    # Of the processes that stayed bash, and of the command.
    expect(len(lines) <= 2, "\n".join(lines))
    expect(not report.named("bash", former=True), "shells that became programs have a section")
    counted = [s.count for s in report.named("expr")]
    expect(counted == [20] or "expr (20)" in report.smaller, f"no expr (20): {report.smaller}")


CHECKS = {f.__name__: f for f in (make, only, fork, spawn, postgresql, gunicorn, limited,
                                  shims)}
CHECKS["all"] = all_of

if __name__ == "__main__":
    name, report, *rest = sys.argv[1:]
    CHECKS[name](report, *(int(word) if word.isdigit() else word for word in rest))
    for failure in failures:
        print(f"{name}: {failure}")
    sys.exit(bool(failures))
