"""How many files the process may have open: each connection is one, and logs share a quarter.

Where none can be opened any more nothing can be written, which ends the broker. The soft limit is
often 1024, for programs that use select(); the hard limit is what the operator meant. Which files
of logs are open is `logstore.disk.descriptors`'.
"""

from __future__ import annotations

import resource
import sys

_OTHERS = 40


def raise_limit() -> int:
    """Raise the soft limit to the hard one, where the system lets us; return the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        return soft  # macOS has no use for "unlimited"
    return hard


def connections_max() -> int:
    """Return how many connections leave a quarter of the files, 64 at least, to the logs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(1, soft - max(64, soft // 4))


def logs_max() -> int:
    """Return how many files logs may have open at once: that quarter, without what else needs one.

    The others are the catalog's, the listeners', and those that are opened and closed in passing.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(64, soft // 4) - _OTHERS
