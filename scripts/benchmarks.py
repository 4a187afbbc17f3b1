#!/usr/bin/env python3
"""Measures the tables of kmem-bench, and writes them as a page with pictures.

usage: scripts/benchmarks.py [--thorough] [DIRECTORY]
       scripts/benchmarks.py --record
       scripts/benchmarks.py --check

Needs `cargo build --release -p kmem-bench -p kmem-preload` and what
crates/kmem-bench/install-programs.sh installs. The page goes to DIRECTORY/README.md, by default
docs/benchmarks. Beside it are the pictures, and the figures as JSON.

kmem's ratios to the best rival are also added to docs/benchmarks/history.json. With --record the
table of malloc is measured and added alone. With --check it is measured and compared with the
history of the same kind of processor. The script fails if a row is more than a quarter above the
worst of the last ten runs. Such a row is measured again, up to five times. It also fails if the
geometric mean is above 2.5, on any processor.
"""

import datetime
import html
import json
import math
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HISTORY = os.path.join(ROOT, "docs/benchmarks/history.json")
# A ratio may be this much above the worst in the history.
ALLOWED = 1.25
# Runs of the history that count, and times that a row is measured again.
LATELY, TRIES = 10, 5
# On a processor without a history this finds what is several times slower than it was.
MEAN_ALLOWED = 2.5
BENCH = os.path.join(ROOT, "target/release/kmem-bench")
TABLES = {
    "malloc": "Nanoseconds per operation of malloc and free",
    "programs": "Real programs",
    "profiling": "The cost of the books",
    "accounting": "The cost of groups",
    "callers": "The cost of callers",
    "census": "The cost of a look",
    "peak": "Memory after a peak",
    "phases": "Programs that need memory again and again",
    "huge-pages": "Huge pages",
    "utilization": "Slab memory of many groups",
    "hardening": "The cost of checks",
    "percpu": "Per-CPU memory",
    "vmalloc": "Areas of pages",
    "rhashtable": "Hash tables",
    "modules": "Modules",
}
# Tables whose rows are compared with rivals: the columns that name a row, and the figure. Programs
# run a few times only, so one lucky run of a rival must not decide.
COMPARED = {
    "malloc": (("workload", "threads"), "ns"),
    "programs": (("program",), "seconds_median"),
}


def measure(table, file, options):
    """The table as text. Its figures are in the file."""
    # A first run reads files that later ones find in memory.
    rounds = ["--rounds", "5"] if table == "programs" else []
    command = [BENCH, table, "--save", file, *rounds, *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def ratios(document, names, figure):
    """kmem's figure over that of the best rival, by row."""
    rows = {}
    for row in document["rows"]:
        key = " ".join(str(row[name]) for name in names)
        rows.setdefault(key, {})[row["allocator"]] = row[figure]
    found = []
    for key, of in rows.items():
        rivals = [value for name, value in of.items() if not name.startswith("kmem")]
        if "kmem" in of and rivals:
            found.append((key, of["kmem"] / min(rivals)))
    return found


def processor(machine):
    """The name of the processor, with the numbers that tell its kinds apart."""
    with open("/proc/cpuinfo") as file:
        values = dict(re.findall(r"^([^\t\n]*?)\t*: (.*)$", file.read(), re.M))
    if "cpu family" not in values:
        return machine["cpu"]
    return f"{machine['cpu']}, family {values['cpu family']} model {values['model']}"


def rivals(document):
    """The other allocators of a run."""
    names = {row["allocator"] for row in document["rows"]}
    return sorted(name for name in names if not name.startswith("kmem"))


def history():
    """Every recorded run, the oldest first."""
    with open(HISTORY) as file:
        return json.load(file)


def record(table, document, of):
    """Adds the ratios of a run to the history, one run a line."""
    run = {
        "date": datetime.date.today().isoformat(),
        "table": table,
        "processor": processor(document["machine"]),
        "kernel": document["machine"]["kernel"],
        "rivals": rivals(document),
        "ratios": {name: round(ratio, 3) for name, ratio in of},
    }
    lines = [json.dumps(run) for run in [*history(), run]]
    with open(HISTORY, "w") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


def measured(directory, *options):
    """A run of the table of malloc: its document, and its ratios."""
    file = os.path.join(directory, "malloc.json")
    measure("malloc", file, options)
    with open(file) as saved:
        document = json.load(saved)
    return document, ratios(document, *COMPARED["malloc"])


def check(directory):
    """Compares the table of malloc with the history. Returns the rows that rose too far."""
    document, of = measured(directory)
    if len(of) < 9:
        return [f"{len(of)} of 9 rows"]
    if mean(of) > MEAN_ALLOWED:
        return [f"a mean of {mean(of):.2f}"]
    kind = processor(document["machine"])
    runs = [
        run["ratios"]
        for run in history()
        if run["table"] == "malloc"
        and run["processor"] == kind
        and run["rivals"] == rivals(document)
    ][-LATELY:]
    if not runs:
        script = '. scripts/not-run.sh && not_run "$1" "$2"'
        reason = f"the history has no {kind} with these rivals"
        words = ["bash", "-c", script, "bash", "ratios of malloc", reason]
        subprocess.run(words, check=True, cwd=ROOT)
        return []
    least = dict(of)
    limits = {name: ALLOWED * max(run.get(name, 0) for run in runs) for name in least}
    above = lambda: [name for name in least if 0 < limits[name] < least[name]]
    for _ in range(TRIES):
        only = sorted({name.split()[0] for name in above()})
        if not only:
            break
        options = [word for name in only for word in ("--only", name)]
        for name, ratio in measured(directory, *options)[1]:
            least[name] = min(least[name], ratio)
    for name, ratio in least.items():
        print(f"{name:<24}{ratio:>6.2f}  of at most {limits[name]:.2f}")
    return above()


def story():
    """The history as a table of Markdown."""
    lines = [
        "## History",
        "",
        "kmem over the best rival of each row, in every recorded run. The ratios of all rows are in",
        "[history.json](history.json).",
        "",
        "| date | table | processor | rows | geometric mean | worst row |",
        "|---|---|---|---|---|---|",
    ]
    for run in history():
        of = list(run["ratios"].items())
        worst = max(of, key=lambda pair: pair[1])
        lines.append(
            f"| {run['date']} | {run['table']} | {run['processor']} | {len(of)} | {mean(of):.2f} "
            f"| {worst[0]} {worst[1]:.2f} |"
        )
    return lines + [""]


def mean(of):
    return math.exp(sum(math.log(ratio) for _, ratio in of) / len(of))


def picture(title, of):
    """Bars of ratios, with a line at 1: the best rival."""
    height, left, width = 22, 170, 460
    most = max(1.5, max(ratio for _, ratio in of))
    across = lambda ratio: left + ratio / most * width
    lines = []
    for number, (name, ratio) in enumerate(of):
        y = 40 + number * height
        color = "#2a7f4f" if ratio <= 1.0 else "#b4562b"
        lines.append(
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect x="{left}" y="{y}" width="{across(ratio) - left:.1f}" height="16" fill="{color}"/>'
            f'<text x="{across(ratio) + 6:.1f}" y="{y + 13}">{ratio:.2f}</text>'
        )
    bottom = 40 + len(of) * height
    one = across(1.0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {bottom + 12}" '
        'font-family="sans-serif" font-size="13">\n'
        f'<rect width="700" height="{bottom + 12}" fill="#fff"/>\n'
        f'<text x="8" y="22" font-weight="bold">{html.escape(title)}</text>\n'
        + "\n".join(lines)
        + f'\n<line x1="{one:.1f}" y1="32" x2="{one:.1f}" y2="{bottom}" stroke="#333"/>\n</svg>\n'
    )


def main():
    words = sys.argv[1:]
    if words in (["--record"], ["--check"]):
        with tempfile.TemporaryDirectory() as directory:
            if words == ["--record"]:
                return record("malloc", *measured(directory))
            above = check(directory)
            sys.exit(f"more than the history allows: {', '.join(above)}" if above else 0)
    options = [word for word in words if word == "--thorough"]
    words = [word for word in words if word != "--thorough"]
    if len(words) > 1 or any(word.startswith("-") for word in words):
        sys.exit(__doc__)
    directory = words[0] if words else os.path.join(ROOT, "docs/benchmarks")
    os.makedirs(directory, exist_ok=True)
    parts, machine, compared = [], None, []
    for table, title in TABLES.items():
        print(f"measuring {table}", file=sys.stderr)
        file = os.path.join(directory, f"{table}.json")
        text = measure(table, file, options)
        with open(file) as saved:
            figures = saved.read().replace(ROOT + "/", "")
        with open(file, "w") as saved:
            saved.write(figures)
        document = json.loads(figures)
        machine = machine or document["machine"]
        part = [f"## {title}", "", f"`kmem-bench {table}`", ""]
        if table in COMPARED:
            of = ratios(document, *COMPARED[table])
            compared.append((table, document, of))
            with open(os.path.join(directory, f"{table}.svg"), "w") as out:
                out.write(picture(f"{table}: kmem over the best rival of each row", of))
            worst = max(of, key=lambda pair: pair[1])
            part += [
                f"kmem over the best rival of each row, by `{COMPARED[table][1]}`: the geometric mean",
                f"is {mean(of):.2f}. The worst row is {worst[0]} with {worst[1]:.2f}. A bar above 1.00 "
                "is a loss.",
                "",
                f"![kmem over the best rival of each row of {table}]({table}.svg)",
                "",
            ]
        parts += part + ["```", text.strip(), "```", ""]
    # Figures that were taken elsewhere are no part of the project's history.
    for run in [] if words else compared:
        record(*run)
    # Behind the version is where the code is.
    versions = [
        f"- {name}: {of.split(', ')[0]}" for name, of in sorted(machine["allocators"].items())
    ]
    head = [
        "# Benchmarks",
        "",
        "Each table measures kmem and its rivals in the same run. How each row is measured is in the",
        "[page of kmem-bench](../../crates/kmem-bench/README.md).",
        "",
        f"- date: {datetime.date.today().isoformat()}",
        f"- processor: {machine['cpu']}, {machine['cores']} CPUs",
        f"- Linux {machine['kernel']}, glibc {machine['glibc']}, huge pages "
        f"{machine['transparent_hugepage']}",
        "- to repeat it: `scripts/benchmarks.py`, after",
        "  `cargo build --release -p kmem-bench -p kmem-preload`",
        "",
        "Allocators of `malloc`:",
        "",
        *versions,
        "",
    ]
    with open(os.path.join(directory, "README.md"), "w") as out:
        out.write("\n".join(head + parts + ([] if words else story())).rstrip() + "\n")


if __name__ == "__main__":
    main()
