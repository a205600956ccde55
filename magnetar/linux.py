"""What the broker asks of the C library: the one file of magnetar with ctypes.

Requests and answers of a megabyte come and go. glibc by default gives such memory back to the
operating system at once and takes new pages for the next: 250 page faults for each. Kept, the same
work costs a third less CPU time (docs/decisions/0005-server.md). The memory kept is bounded. The
storage has a file of its own kind, for the disk.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

# <sys/prctl.h>
_PR_SET_TIMERSLACK = 29
_SLACK_NS = 1_000

#: The most memory kept at the heap's end, and the size from which glibc maps memory by itself.
KEPT_BYTES = 32 << 20

# <malloc.h> of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory, and return whether it will. Others need no telling."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    trims = mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    return bool(trims and mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES))


def wake_on_time() -> None:
    """Let the sleeps of this thread end within a microsecond. Linux adds 50 otherwise."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)
