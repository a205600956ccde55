"""The cleaner's pace in simulated time: it never sleeps, and looks at every call what it may do.

The real one measures the machine's time, by which a history would depend on how busy that is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from magnetar.runtime import cleaning


class SimulatedPace:
    """Stands for `magnetar.runtime.cleaning.Pace`."""

    def __init__(self, _: Callable[[], float], has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self.is_stopped = False

    def __call__(self, size_bytes: int = 0) -> None:
        if self.is_stopped:
            raise cleaning.Stopped
        if not self._has_room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def simulated_pace() -> Iterator[None]:
    """Let the cleaners that are made in the block have this pace."""
    real = cleaning.Pace
    vars(cleaning)["Pace"] = SimulatedPace
    try:
        yield
    finally:
        vars(cleaning)["Pace"] = real
