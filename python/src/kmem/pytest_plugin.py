"""A plugin of pytest: fails tests that leave too much memory, and lists what tests leave."""

import gc

import pytest

from . import _library as library
from ._snapshot import diff, snapshot
from ._text import shown, size


def pytest_addoption(parser):
    group = parser.getgroup("kmem", "memory of tests")
    group.addoption(
        "--kmem",
        action="store_true",
        help="list the largest allocations that each test leaves",
    )
    group.addoption(
        "--kmem-max",
        metavar="SIZE",
        type=_size,
        help="fail a test that leaves more bytes, as 10M; the marker kmem_max comes first",
    )


def _size(text):
    import argparse

    try:
        return size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error))


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "kmem_max(size): fail the test if it leaves more bytes, as '10M'"
    )
    wanted = config.getoption("kmem") or config.getoption("kmem_max") is not None
    if wanted and not library.active():
        raise pytest.UsageError(
            "--kmem and --kmem-max need the library: start pytest with `kmem run -- pytest ..`"
        )
    config.pluginmanager.register(_Watch(config), "kmem-watch")


class _Watch:
    def __init__(self, config):
        self.lists = config.getoption("kmem")
        self.most = config.getoption("kmem_max")
        self.left = []

    def _most(self, item):
        marker = item.get_closest_marker("kmem_max")
        if marker is None:
            return self.most
        if len(marker.args) != 1:
            raise pytest.UsageError("kmem_max takes one size, as in kmem_max('10M')")
        return size(marker.args[0])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        most = self._most(item)
        # A marker without the library checks nothing, as scopes do nothing then.
        if not library.active() or (most is None and not self.lists):
            yield
            return
        gc.collect()
        before = snapshot()
        outcome = yield
        # A failed test keeps its frames for the report.
        if outcome.excinfo is not None:
            return
        gc.collect()
        grown = diff(before, snapshot())
        if self.lists:
            self.left.append((item.nodeid, grown))
        if most is not None and grown.bytes > most:
            try:
                pytest.fail(
                    "the test left {} of memory, more than {}\n{}".format(
                        shown(grown.bytes), shown(most), grown
                    ),
                    pytrace=False,
                )
            except pytest.fail.Exception as failure:
                outcome.force_exception(failure)

    def pytest_terminal_summary(self, terminalreporter):
        if not self.left:
            return
        terminalreporter.section("memory that tests left (kmem)")
        for name, grown in self.left:
            terminalreporter.write_line("{}: {}".format(name, grown))

