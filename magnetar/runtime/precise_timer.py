"""A timer that counts in less than milliseconds, as event loops do not: libuv's may be one late.

Linux's timerfd, clock CLOCK_MONOTONIC. Source: timerfd_create(2).
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import sys
import time
from collections.abc import Callable

#: The clock that it goes by, in nanoseconds.
now_ns = time.monotonic_ns
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_NS = 1_000_000_000


class _Setting(ctypes.Structure):
    """struct itimerspec, of a process of 64 bits: every so often, first at."""

    _fields_ = (
        ("interval_s", ctypes.c_int64),
        ("interval_ns", ctypes.c_int64),
        ("first_s", ctypes.c_int64),
        ("first_ns", ctypes.c_int64),
    )


class PreciseTimerUnavailable(Exception):
    """This operating system has none."""


class PreciseTimer:
    """Calls back once, at the time it was last set to. On the event loop's thread."""

    def __init__(self, callback: Callable[[], None]) -> None:
        """From a running loop. Raises PreciseTimerUnavailable."""
        if not sys.platform.startswith("linux") or sys.maxsize <= 2**32:
            raise PreciseTimerUnavailable
        self._library = ctypes.CDLL(None, use_errno=True)
        self._callback = callback
        self._setting = _Setting()
        descriptor = self._library.timerfd_create(
            time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC
        )
        if descriptor < 0:
            raise PreciseTimerUnavailable(os.strerror(ctypes.get_errno()))
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._on_time)

    def set(self, at_ns: int) -> None:
        """Call back at that time of `now_ns`, above 0; at once where it is past."""
        self._setting.first_s, self._setting.first_ns = divmod(at_ns, _NS)
        failed = self._library.timerfd_settime(
            self._descriptor, _ABSOLUTE, ctypes.byref(self._setting), None
        )
        assert not failed, errno.errorcode[ctypes.get_errno()]

    def close(self) -> None:
        """Release it; nothing is called afterwards."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _on_time(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return  # It was set anew meanwhile.
        self._callback()
