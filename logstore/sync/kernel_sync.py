"""fdatasync by the kernel's own workers, who say by an eventfd that it is done.

A thread of ours that syncs has to take the interpreter's lock from the event loop and give it back,
three times for each sync: that costs more than the sync (docs/decisions/0018-journal.md). Here the
loop asks and goes on. Linux's native AIO, `IOCB_CMD_FDSYNC` (4.18 and later, any file system), on
machines whose system calls are numbered here; elsewhere a thread does it. Source: io_submit(2),
linux/aio_abi.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

_SETUP, _DESTROY, _SUBMIT, _GETEVENTS = range(4)
#: Of io_setup, io_destroy, io_submit, io_getevents.
_NUMBERS = {
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
    "riscv64": (0, 1, 2, 4),
}
_FDSYNC = 3
_FLAG_RESFD = 1
#: What a kernel or a sandbox without it answers.
_UNAVAILABLE = frozenset({errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES, errno.EAGAIN})


class _Request(ctypes.Structure):
    """struct iocb, of a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("position", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_descriptor", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class KernelSyncUnavailable(Exception):
    """This kernel does not do it, or not here."""


class KernelSync:
    """One sync at a time. On the event loop's thread."""

    def __init__(self) -> None:
        """Raises KernelSyncUnavailable."""
        # The machine is the kernel's: a process of 32 bits has other numbers.
        numbers = _NUMBERS.get(os.uname().machine) if sys.maxsize > 2**32 else None
        if not sys.platform.startswith("linux") or numbers is None or sys.byteorder != "little":
            raise KernelSyncUnavailable
        self._numbers = tuple(map(ctypes.c_long, numbers))
        self._system_call = ctypes.CDLL(None, use_errno=True).syscall
        self._system_call.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._call(_SETUP, ctypes.c_uint(1), ctypes.byref(self._context))
        #: Readable when the sync is done.
        self.event_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._request = _Request(
            opcode=_FDSYNC, flags=_FLAG_RESFD, event_descriptor=self.event_descriptor
        )
        requests = (ctypes.POINTER(_Request) * 1)(ctypes.pointer(self._request))
        self._events = (_Event * 1)()
        one = ctypes.c_long(1)
        # Made once: a sync is a few microseconds of the caller's.
        self._submission = (self._context, one, requests)
        self._collection = (self._context, one, one, self._events, None)

    def begin(self, descriptor: int) -> None:
        """Begin to sync a file. Raises KernelSyncUnavailable, then nothing has begun."""
        self._request.descriptor = descriptor
        self._call(_SUBMIT, *self._submission)

    def result(self) -> OSError | None:
        """Return how the sync ended, once `event_descriptor` is readable."""
        os.eventfd_read(self.event_descriptor)
        count = self._call(_GETEVENTS, *self._collection)
        assert count == 1, "one request, one event"
        result: int = self._events[0].result
        return None if result == 0 else OSError(-result, os.strerror(-result), "fdatasync")

    def close(self) -> None:
        """Release everything, after the sync under way."""
        self._call(_DESTROY, self._context)
        os.close(self.event_descriptor)

    def _call(self, which: int, *arguments: object) -> int:
        result: int = self._system_call(self._numbers[which], *arguments)
        if result < 0:
            code = ctypes.get_errno()
            if which == _SETUP or (which == _SUBMIT and code in _UNAVAILABLE):
                raise KernelSyncUnavailable(os.strerror(code))
            raise OSError(code, os.strerror(code), "native AIO")
        return result
