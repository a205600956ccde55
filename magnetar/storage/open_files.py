"""The limit of open files: each connection is one, and logs share a quarter of the limit.

A broker that cannot open a file cannot write, and ends. The soft limit is often 1024, for programs
that use select(); the hard limit is what the operator meant. `logstore.disk.descriptors` decides
which files of logs are open.
"""

from __future__ import annotations

import resource
import sys

#: Files of the catalog and of listeners, and those that are opened and closed in passing.
_OTHERS = 40


def raise_limit() -> int:
    """Raise the soft limit to the hard one, where the system lets us; return the soft limit."""
    # A process may raise its own soft limit up to the hard one without privileges.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        # macOS accepts no "unlimited".
        return soft
    return hard


def connections_max() -> int:
    """Return how many connections leave a quarter of the files, 64 at least, to the logs."""
    soft = _soft_limit()
    return max(1, soft - _logs_share(soft))


def logs_max() -> int:
    """Return how many files logs may have open at once: their quarter, less `_OTHERS`."""
    return _logs_share(_soft_limit()) - _OTHERS


def _soft_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _logs_share(soft: int) -> int:
    return max(64, soft // 4)
