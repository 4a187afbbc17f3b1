"""Measures small programs of Python: measure.py PYTHON KMEM_LIBRARY RUNS ROUNDS.

Prints tables of Markdown: medians of RUNS runs in turn, of wall time and of the most resident
memory. PYTHON may have memray.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
NAMES = ["json", "pickle", "re", "asyncio"]

python, library, runs, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
output = tempfile.TemporaryDirectory()
memray = ["-m", "memray", "run", "-q", "-f", "-o", output.name + "/memray.bin"]
under = {"PYTHONMALLOC": "malloc", "LD_PRELOAD": library}
VARIANTS = {
    "plain": ({}, []),
    "`PYTHONMALLOC=malloc`, glibc": ({"PYTHONMALLOC": "malloc"}, []),
    "kmem, `python:off`": (dict(under, KMEM_CONF="python:off"), []),
    "kmem with lines": (under, []),
    "tracemalloc": ({}, ["-X", "tracemalloc"]),
    "memray": ({}, memray),
    "memray, objects": ({}, [*memray, "--trace-python-allocators"]),
}


def processor():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "an unknown processor"


def run(variant, name):
    """Seconds and bytes of one run."""
    more, options = VARIANTS[variant]
    env = {key: value for key, value in os.environ.items()
           if key not in ("LD_PRELOAD", "KMEM_CONF", "PYTHONMALLOC")}
    env.update(more, PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1")
    began = time.monotonic()
    # memray warns of each symbol that it corrects.
    with open(output.name + "/errors", "w") as errors:
        child = subprocess.Popen([python, *options, str(PROGRAM), name, rounds], env=env,
                                 stderr=errors)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        said = Path(errors.name).read_text()
        sys.exit(f"{variant}, {name}: exit code {child.returncode}: {said}")
    return seconds, usage.ru_maxrss * 1024


if subprocess.run([python, "-c", "import memray"], stderr=subprocess.DEVNULL).returncode:
    del VARIANTS["memray"], VARIANTS["memray, objects"]
measured = {(variant, name): [] for variant in VARIANTS for name in NAMES}
for _ in range(runs):
    for (variant, name), found in measured.items():
        found.append(run(variant, name))


def median(variant, name, part):
    return statistics.median(found[part] for found in measured[variant, name])


version = subprocess.run([python, "-V"], stdout=subprocess.PIPE, text=True).stdout.strip()
load = os.getloadavg()[0]
print(f"{version} on {processor()}, {os.cpu_count()} CPUs, load {load:.1f}; medians of {runs} runs")
for part, title, unit, scale in [(0, "wall time", "s", 1),
                                (1, "peak of resident memory", "MiB", 1 << 20)]:
    print(f"\n| {title}, in {unit} | " + " | ".join(NAMES) + " | of plain |")
    print("|---" * (len(NAMES) + 2) + "|")
    for variant in VARIANTS:
        values = [median(variant, name, part) for name in NAMES]
        ratios = [value / median("plain", name, part) for value, name in zip(values, NAMES)]
        cells = [f"{value / scale:.{2 if part == 0 else 1}f}" for value in values]
        print(f"| {variant} | {' | '.join(cells)} | {statistics.geometric_mean(ratios):.2f} |")
