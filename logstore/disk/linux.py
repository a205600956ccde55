"""What the log store asks of Linux that Python's `os` does not offer: syncfs, mincore and native
AIO. And of Python's own C interface: buffers that are not cleared.

Every call by ctypes is in this file. Each one is looked for when it is first wanted, and its caller
has another way where a kernel, a sandbox or another system lacks it.

- `find_syncfs`: syncfs(2), all dirty pages of one file system at once. Since 5.8 it reports
  write-back errors that happened after its descriptor was opened; before, it reported none.
- `file_system_type`: the number by which fstatfs(2) names the type of a file system.
- `find_residence`: mincore(2), whether a part of a file is in memory.
- `KernelSync`: fdatasync by the kernel's own workers, announced by an eventfd
  (`IOCB_CMD_FDSYNC`, since 4.18 on any file system). A thread of ours that syncs takes the
  interpreter's lock from the event loop and gives it back, three times for each sync, which costs
  more than the sync itself (docs/decisions/0018-journal.md).
- `uncleared`: a buffer to read into. `bytearray(n)` clears its memory first, which is a tenth of
  what the broker does for a record of 1 KB.

Source: syncfs(2), io_submit(2), linux/aio_abi.h, "Byte Array Objects" of Python's C interface.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from mmap import MAP_SHARED, PAGESIZE, PROT_READ

#: The system calls' numbers by machine: io_setup, io_destroy, io_submit, io_getevents.
_NUMBERS = {
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
    "riscv64": (0, 1, 2, 4),
}
_FDSYNC = 3
_FLAG_RESFD = 1
#: What a kernel or a sandbox without native AIO answers to a request.
_UNAVAILABLE = frozenset({errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES, errno.EAGAIN})

#: What mmap returns where it has failed, as an unsigned number.
_MAP_FAILED = ctypes.c_void_p(-1).value

#: Smaller buffers are cleared: that costs less than the call.
_UNCLEARED_BYTES_MIN = 32 * 1024

_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
_new_bytearray.restype = ctypes.py_object


def uncleared(size_bytes: int) -> bytearray:
    """Return a buffer of `size_bytes` with anything in it, to be read into.

    It may hold what the process had in memory before: show none of it that was not written. Raises
    MemoryError.
    """
    if size_bytes < _UNCLEARED_BYTES_MIN:
        return bytearray(size_bytes)
    # Without bytes to copy it is memory as it comes, as the C interface says.
    buffer: bytearray = _new_bytearray(None, size_bytes)
    return buffer


def find_syncfs() -> Callable[[int], None] | None:
    """Return syncfs, which takes a descriptor of the file system and raises OSError. None: there
    is no such call here."""
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if function is None:
        return None

    def syncfs(descriptor: int) -> None:
        if function(descriptor) != 0:
            raise _last_error("syncfs")

    return syncfs


def find_residence() -> Callable[[int, int, int], bool] | None:
    """Return what tells whether all bytes of a part of a file are in memory: of a descriptor, from
    a position on, so many, at least one. None: there is no such call here, or no sendfile.

    "No" is also the answer where it is not known.
    """
    if not sys.platform.startswith("linux"):
        return None
    # Without giving up the interpreter's lock: that would cost more than the calls.
    library = ctypes.PyDLL(None)
    map_file, is_in_core, unmap = library.mmap, library.mincore, library.munmap
    map_file.restype = ctypes.c_void_p
    map_file.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        *[ctypes.c_int] * 3,
        ctypes.c_long,
    ]
    is_in_core.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def is_resident(descriptor: int, position: int, size: int) -> bool:
        skipped = position % PAGESIZE
        size += skipped
        address = map_file(None, size, PROT_READ, MAP_SHARED, descriptor, position - skipped)
        if address == _MAP_FAILED:
            return False
        pages = -(-size // PAGESIZE)
        found = ctypes.create_string_buffer(pages)
        failed = is_in_core(address, size, found)
        unmap(address, size)
        return not failed and found.raw.count(1) == pages

    return is_resident


def file_system_type(descriptor: int) -> int:
    """Return the type of the file system, as fstatfs(2) does. Raises OSError."""
    # `f_type`, a long, comes first; the rest is of no interest, and at most so large.
    found = (ctypes.c_long * 64)()
    if ctypes.CDLL(None, use_errno=True).fstatfs(descriptor, found) != 0:
        raise _last_error("fstatfs")
    return int(found[0])


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
    """This kernel has no native AIO, or refuses it to this process. Sync in a thread instead."""


class KernelSync:
    """One fdatasync at a time. On the event loop's thread."""

    def __init__(self) -> None:
        """Raises KernelSyncUnavailable."""
        # `uname` tells the kernel's machine: a process of 32 bits has other numbers.
        numbers = _NUMBERS.get(os.uname().machine) if sys.maxsize > 2**32 else None
        if not sys.platform.startswith("linux") or numbers is None or sys.byteorder != "little":
            raise KernelSyncUnavailable
        setup, self._destroy, submit, getevents = map(ctypes.c_long, numbers)
        self._system_call = ctypes.CDLL(None, use_errno=True).syscall
        self._system_call.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        if self._system_call(setup, ctypes.c_uint(1), ctypes.byref(self._context)) < 0:
            raise KernelSyncUnavailable(str(_last_error("io_setup")))
        #: Readable when the sync is done.
        self.event_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._request = _Request(
            opcode=_FDSYNC, flags=_FLAG_RESFD, event_descriptor=self.event_descriptor
        )
        requests = (ctypes.POINTER(_Request) * 1)(ctypes.pointer(self._request))
        self._events = (_Event * 1)()
        one = ctypes.c_long(1)
        # Built once: each sync spends these microseconds on the event loop.
        self._submission = (submit, self._context, one, requests)
        self._collection = (getevents, self._context, one, one, self._events, None)

    def begin(self, descriptor: int) -> None:
        """Begin to sync a file. Raises KernelSyncUnavailable or OSError: then nothing has begun."""
        self._request.descriptor = descriptor
        if self._system_call(*self._submission) < 0:
            error = _last_error("io_submit")
            if error.errno in _UNAVAILABLE:
                raise KernelSyncUnavailable(str(error))
            raise error

    def result(self) -> OSError | None:
        """Return how the sync ended, once `event_descriptor` is readable."""
        os.eventfd_read(self.event_descriptor)
        count = self._system_call(*self._collection)
        if count < 0:
            raise _last_error("io_getevents")
        assert count == 1, "one request, one event"
        result: int = self._events[0].result
        return None if result == 0 else OSError(-result, os.strerror(-result), "fdatasync")

    def close(self) -> None:
        """Wait for the sync under way and release everything."""
        if self._system_call(self._destroy, self._context) < 0:
            raise _last_error("io_destroy")
        os.close(self.event_descriptor)


def _last_error(name: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), name)
