"""A timer that counts in less than milliseconds, as event loops do not: libuv's may be one late.

Linux's timerfd, on CLOCK_MONOTONIC. Source: timerfd_create(2). Python has it since 3.13.
"""

from __future__ import annotations

import asyncio
import ctypes
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
    """There is none: another operating system, 32 bits, no descriptor left."""


class PreciseTimer:
    """Calls back once, at the time it was last set to. On the event loop's thread."""

    def __init__(self, callback: Callable[[], None]) -> None:
        """From a running loop. Raises PreciseTimerUnavailable."""
        if not sys.platform.startswith("linux") or sys.maxsize <= 2**32:
            raise PreciseTimerUnavailable("timerfd of 64 bits is Linux's")
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._setting = _Setting()
        try:
            # Of a microsecond each: the interpreter's lock is kept.
            library = ctypes.PyDLL(None, use_errno=True)
            self._set_time = library.timerfd_settime
            create = library.timerfd_create
        except (OSError, AttributeError) as error:
            raise PreciseTimerUnavailable(str(error)) from error
        self._descriptor: int = create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise PreciseTimerUnavailable(os.strerror(ctypes.get_errno()))
        try:
            self._loop.add_reader(self._descriptor, self._on_time)
        except OSError as error:
            os.close(self._descriptor)
            raise PreciseTimerUnavailable(str(error)) from error

    def set(self, at_ns: int) -> None:
        """Call back at that time of `now_ns`, above 0; at once where it is past."""
        self._setting.first_s, self._setting.first_ns = divmod(at_ns, _NS)
        failed = self._set_time(self._descriptor, _ABSOLUTE, ctypes.byref(self._setting), None)
        assert not failed, os.strerror(ctypes.get_errno())

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
