"""Runs the examples of the page on this package."""

import os
import re
import subprocess
import sys

import pytest

PAGE = os.path.join(os.path.dirname(__file__), "../../docs/python-package.md")


def examples():
    with open(PAGE) as page:
        return re.findall(r"^```python\n(.*?)^```$", page.read(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", examples())
def test_an_example_runs(example, tmp_path):
    file = tmp_path / "example.py"
    file.write_text(example)
    command = [sys.executable, str(file)]
    if "def test_" in example:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(
        command, cwd=str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout.decode()


def test_the_page_has_examples():
    assert len(examples()) >= 4
