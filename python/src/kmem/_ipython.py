"""The magic `%%kmem`."""

import gc

from ._snapshot import diff, snapshot


def load(ipython):
    """Adds the magic to a shell of IPython."""

    def kmem(line, cell):
        """Runs the cell, and prints the memory that it left."""
        before = snapshot()
        ipython.run_cell(cell)
        gc.collect()
        print(diff(before, snapshot()))

    ipython.register_magic_function(kmem, magic_kind="cell", magic_name="kmem")
