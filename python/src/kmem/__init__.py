"""Tags, groups and snapshots of memory for programs under kmem.

Without the library all of it works and does nothing, except `snapshot`.
"""

from ._group import Group, group
from ._library import KmemError, active
from ._scope import ScopeError, current_tag, scoped
from ._snapshot import Diff, Row, Snapshot, diff, snapshot
from ._tag import tag

__all__ = [
    "Diff",
    "Group",
    "KmemError",
    "Row",
    "ScopeError",
    "Snapshot",
    "active",
    "current_tag",
    "diff",
    "group",
    "scoped",
    "snapshot",
    "tag",
]


def load_ipython_extension(ipython):
    """Adds the magic `%%kmem`."""
    from ._ipython import load

    load(ipython)
