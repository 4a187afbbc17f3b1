import gc
import os
import subprocess
import sys

import pytest

import kmem

pytest_plugins = ["pytester"]


@pytest.fixture
def without_library():
    """Runs code in a process without the library, and returns what it prints."""

    def run(code):
        environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "KMEM_CONF")}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, done.stdout.decode()
        return done.stdout.decode().strip()

    return run


@pytest.fixture
def group(request):
    """A group of the test's name."""
    made = kmem.group(request.node.name)
    yield made
    made.max = None
    made.delete()


@pytest.fixture(autouse=True)
def no_collection():
    """Keeps the garbage collector's own work out of the scopes of a test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def pytest_configure(config):
    if not kmem.active():
        raise pytest.UsageError("start these tests with `kmem run -- python3 -m pytest ..`")
