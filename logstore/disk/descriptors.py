"""Open files: a bounded number of descriptors for as many files as there are partitions.

A `DiskFile` that was not used for a while loses its descriptor when another file needs one, and
gets a new one when it is used again. It keeps the descriptor while it is in use or pinned, and for
good once its name is gone or belongs to another file.

A clock chooses the file to lose its descriptor: a hand goes round and passes over a file once if it
was used since the hand last came by. Any thread may use any file without a lock. A user registers
first and looks at the descriptor second; the hand takes the descriptor away first and looks for
users second, and gives it back if there is one. So one of the two always sees the other.

The kernel reports a failed write-back to descriptors that were open then. A file that lost its
descriptor before its bytes were synced is therefore synced with its whole file system, through a
descriptor that has been open since the start. Without such a sync the file keeps its descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TypeAlias

from logstore.disk.file_range import RANGE_BYTES_MIN, RANGES_MAX, FileRange
from logstore.disk.linux import find_residence, uncleared

Buffer: TypeAlias = bytes | bytearray | memoryview

_FLAGS = os.O_RDWR | os.O_CLOEXEC
#: The least bound, whatever was asked for: a handful of partitions, and the threads.
_OPEN_MIN = 16
#: Linux takes at most IOV_MAX buffers in one call.
_IOV_MAX = 1024


class Descriptors:
    """The descriptors of the files of one data directory."""

    def __init__(self, open_max: int, sync_all: Callable[[], None] | None) -> None:
        self.sync_all = sync_all
        self.is_resident = find_residence()
        #: An entry for each `FileRange` that lives.
        self.lent: list[None] = []
        self._open_max = max(open_max, _OPEN_MIN)
        self._lock = Lock()
        self._clock: deque[DiskFile] = deque()
        self._open_count = 0
        #: By directory and path, every file that is not closed, with a descriptor or without.
        self._files: dict[str, dict[str, set[DiskFile]]] = {}
        #: Names that are being deleted. A file opened meanwhile keeps its descriptor too.
        self._going: set[str] = set()

    @property
    def open_count(self) -> int:
        """How many descriptors are in use."""
        return self._open_count

    def may_lend(self) -> bool:
        """Whether one more `FileRange` may have a descriptor, within the bound of all files."""
        lent_count = len(self.lent)
        return lent_count < RANGES_MAX and self._open_count + lent_count < self._open_max

    def open(self, path: str, *, create: bool) -> DiskFile:
        """Open a file for reading and writing."""
        with self._lock:
            self._make_room()
            flags = _FLAGS | (os.O_CREAT if create else 0)
            file = DiskFile(self, path, _open(path, flags))
            file.has_name = path not in self._going
            self._note(file)
            self._enter(file)
            return file

    def reopen(self, file: DiskFile) -> int:
        """Give a file a descriptor again. Raises OSError, also for a file that was closed."""
        with self._lock:
            return self._reopen(file)

    def _reopen(self, file: DiskFile) -> int:
        if file.descriptor < 0:
            if file.is_closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), file.path)
            self._make_room()
            file.descriptor = _open(file.path, _FLAGS)
            self._enter(file)
        return file.descriptor

    def close(self, file: DiskFile) -> None:
        """Close a file for good."""
        with self._lock:
            file.is_closed = True  # In the step that forgets it, so that `_keep` never finds it.
            self._forget(file)
            descriptor, file.descriptor = file.descriptor, -1
            if descriptor >= 0:
                self._open_count -= 1
                os.close(descriptor)

    def unlink(self, path: str) -> None:
        """Delete a name. The files that had it keep their descriptors."""
        with self._lock:
            self._keep(path)
            self._going.add(path)
        try:
            os.unlink(path)  # Outside the lock: a large file takes a while.
        finally:
            with self._lock:
                self._going.discard(path)

    def rename(self, source: str, target: str) -> None:
        """Give a file or a directory another name. The files that had the new name keep their
        descriptors."""
        with self._lock:
            self._keep(target)
            os.replace(source, target)
            inside = self._files.pop(source, {})
            for file in [file for files in inside.values() for file in files]:
                file.path = f"{target}/{os.path.basename(file.path)}"
                self._note(file)
            for file in self._named(source):
                self._forget(file)
                file.path = target
                self._note(file)

    def _keep(self, path: str) -> None:
        # Opened now: once the name is gone, the file cannot be opened by it.
        for file in self._named(path):
            self._reopen(file)
            file.has_name = False

    def _named(self, path: str) -> list[DiskFile]:
        files = self._files.get(os.path.dirname(path), {}).get(path, ())
        return [file for file in files if file.has_name]

    def _note(self, file: DiskFile) -> None:
        directory = self._files.setdefault(os.path.dirname(file.path), {})
        directory.setdefault(file.path, set()).add(file)

    def _forget(self, file: DiskFile) -> None:
        name = os.path.dirname(file.path)
        directory = self._files.get(name, {})
        files = directory.get(file.path, set())
        files.discard(file)
        if not files:
            directory.pop(file.path, None)
        if not directory:
            self._files.pop(name, None)

    def _enter(self, file: DiskFile) -> None:
        self._open_count += 1
        self._clock.append(file)
        if len(self._clock) > 2 * self._open_count + _OPEN_MIN:
            # Files that were closed are still in it, and those opened again twice.
            self._clock = deque(each for each in set(self._clock) if each.descriptor >= 0)

    def _make_room(self) -> None:
        # Twice round: the first time may find every file used since the hand last came by.
        for _ in range(2 * len(self._clock)):
            if self._open_count + len(self.lent) < self._open_max:
                return
            file = self._clock.popleft()
            if file.descriptor < 0:
                continue
            if not file.was_used and file.let_go():
                self._open_count -= 1
            else:
                file.was_used = False
                self._clock.append(file)


def _open(path: str, flags: int) -> int:
    """Return a descriptor. Raises OSError, also for a pipe or a device, which may be opened too."""
    descriptor = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        # As for a socket, which the operating system does not open.
        raise OSError(errno.ENXIO, "Not a regular file", path)
    return descriptor


class DiskFile:
    """A file that is open, whether it has a descriptor at the moment or not."""

    __slots__ = (
        "_closing",
        "_descriptors",
        "_pins",
        "_reads_now",
        "_synced_writes",
        "_users",
        "_was_let_go_unsynced",
        "_writes",
        "descriptor",
        "has_name",
        "is_closed",
        "path",
        "was_used",
    )

    def __init__(self, descriptors: Descriptors, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.was_used = True
        self.has_name = True
        self.is_closed = False
        self._descriptors = descriptors
        self._users: list[None] = []
        self._pins = 0
        self._closing = False
        self._reads_now = True
        self._writes = 0
        self._synced_writes = 0
        self._was_let_go_unsynced = False

    def let_go(self) -> bool:
        """Close the descriptor, unless it is needed. Returns whether it did. Under the lock."""
        if self._pins or not self.has_name:
            return False
        descriptor, self.descriptor = self.descriptor, -1
        if self._users:
            # One came between the two looks: it has the descriptor, so the file keeps it.
            self.descriptor = descriptor
            return False
        if self._writes != self._synced_writes:
            if self._descriptors.sync_all is None:
                self.descriptor = descriptor
                return False
            self._was_let_go_unsynced = True
        os.close(descriptor)
        return True

    def _use(self) -> int:
        """Return the descriptor, which stays until one entry of `_users` is taken away."""
        self._users.append(None)
        self.was_used = True
        descriptor = self.descriptor
        if descriptor >= 0:
            return descriptor
        try:
            return self._descriptors.reopen(self)
        except BaseException:
            self._users.pop()
            raise

    def size(self) -> int:
        descriptor = self._use()
        try:
            return os.fstat(descriptor).st_size
        finally:
            self._users.pop()

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        # As `_use`, whose call each append would pay for.
        self._users.append(None)
        self.was_used = True
        descriptor = self.descriptor
        try:
            if descriptor < 0:
                descriptor = self._descriptors.reopen(self)
            self._writes += 1
            if len(buffers) == 1:
                total = len(buffers[0])
                written = os.pwrite(descriptor, buffers[0], position)
            else:
                total = sum(map(len, buffers))
                written = os.pwritev(descriptor, buffers[:_IOV_MAX], position)
            if written < total:
                # The disk is nearly full, or a signal came. The next write says which.
                rest = memoryview(b"".join(buffers))
                while written < total:
                    written += os.pwrite(descriptor, rest[written:], position + written)
        finally:
            self._users.pop()

    def read(self, size: int, position: int) -> bytes:
        descriptor = self._use()
        try:
            data = os.pread(descriptor, size, position)
            # Nearly every read is whole, or at the file's end, and needs no copy.
            if len(data) in (size, 0):
                return data
            parts, have = [data], len(data)
            while have < size and (data := os.pread(descriptor, size - have, position + have)):
                parts.append(data)
                have += len(data)
            return b"".join(parts)
        finally:
            self._users.pop()

    def read_now(self, size: int, position: int) -> Buffer | None:
        if not self._reads_now:
            return None
        buffer = uncleared(size)
        descriptor = self._use()
        try:
            have = os.preadv(descriptor, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # tmpfs, NFS and FUSE cannot say whether they would wait: `read` does it, in a thread.
            self._reads_now = False
            return None
        finally:
            self._users.pop()
        if have == size:
            return buffer
        # Short because the file ends here, or because the next page is not in memory.
        return memoryview(buffer)[:have] if position + have >= self.size() else None

    def range_now(self, size: int, position: int) -> FileRange | None:
        descriptors = self._descriptors
        is_resident = descriptors.is_resident
        if size < RANGE_BYTES_MIN or is_resident is None or not descriptors.may_lend():
            return None
        descriptor = self._use()
        try:
            is_whole = position + size <= os.fstat(descriptor).st_size
            if is_whole and is_resident(descriptor, position, size):
                return FileRange(descriptor, position, size, descriptors.lent)
        except OSError:
            return None  # No descriptor is left: a read goes without.
        finally:
            self._users.pop()
        return None

    def truncate(self, size: int) -> None:
        descriptor = self._use()
        try:
            self._writes += 1
            os.ftruncate(descriptor, size)
        finally:
            self._users.pop()

    def sync(self) -> None:
        descriptor = self._use()
        try:
            # Counted before the sync: what is written during it may not be covered.
            writes = self._writes
            sync_all = self._descriptors.sync_all
            if self._was_let_go_unsynced and sync_all is not None:
                sync_all()
                self._was_let_go_unsynced = False
            else:
                os.fdatasync(descriptor)
            self._synced_writes = writes
        finally:
            self._users.pop()

    def pin(self) -> None:
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        if self._closing and not self._pins:
            self._close_now()

    def close(self) -> None:
        self._closing = True
        if not self._pins:
            self._close_now()

    def _close_now(self) -> None:
        self._descriptors.close(self)
