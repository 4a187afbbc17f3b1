import pytest

interactiveshell = pytest.importorskip("IPython.core.interactiveshell")


def test_the_magic_prints_what_a_cell_left(capsys):
    shell = interactiveshell.InteractiveShell.instance()
    shell.run_line_magic("load_ext", "kmem")
    shell.run_cell_magic("kmem", "", "kept = bytearray(3000000)")
    printed = capsys.readouterr().out
    assert "MiB in " in printed and "SIZE" in printed
    assert len(shell.user_ns["kept"]) == 3000000
