import pytest

TESTS = """
import pytest
kept = []

def test_leaks():
    kept.append(bytearray(3000000))

def test_clean():
    bytearray(3000000)

@pytest.mark.kmem_max("10M")
def test_may():
    kept.append(bytearray(3000000))

@pytest.mark.kmem_max(1000)
def test_may_not():
    kept.append(bytearray(30000))

def test_fails():
    assert not kept
"""


def run(pytester, *args):
    pytester.makepyfile(TESTS)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *args)


def test_a_test_that_leaves_more_than_the_limit_fails_with_the_line(pytester):
    result = run(pytester, "--kmem-max", "1M")
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(
        [
            "the test left * of memory, more than 1.0 MiB",
            "*+[23].? MiB * test_leaks *test_a_test_that_leaves_more_than_the_limit_fails*.py:5",
        ]
    )


def test_the_marker_alone_limits_a_test(pytester):
    result = run(pytester)
    result.assert_outcomes(passed=3, failed=2)


def test_the_summary_lists_the_rows_of_each_test(pytester):
    result = run(pytester, "--kmem", "-k", "leaks")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*memory that tests left (kmem)*",
            "*::test_leaks: +[23].? MiB in * objects",
            "*+[23].? MiB * test_leaks *.py:5",
        ]
    )


def test_a_wrong_size_is_refused(pytester):
    result = run(pytester, "--kmem-max", "much")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'much' is no size*"])


def test_without_the_library_the_options_say_what_to_do(pytester, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD")
    result = run(pytester, "--kmem")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*kmem run -- pytest*"])
    # A marker does nothing then.
    run(pytester).assert_outcomes(passed=4, failed=1)
