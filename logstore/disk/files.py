"""The seam between the log store and the operating system's files.

Everything that the log store knows of a disk goes through `FileSystem` and `File`. `DiskFiles` is
the real one, whose open files `logstore.disk.descriptors` keeps; the simulated disk of the tests
loses power. Paths are strings, as the operating system takes them. Errors are `OSError`; callers
turn them into `StorageFailure`.

A file's bytes and size are durable after `File.sync`, its name (created, renamed, unlinked) after
`sync_directory` of the directory that holds it, and everything after `sync_all`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import NamedTuple, Protocol

from logstore.disk.descriptors import Buffer as Buffer
from logstore.disk.descriptors import Descriptors, DiskFile
from logstore.disk.file_range import FileRange
from logstore.disk.linux import find_syncfs
from logstore.disk.sync_all import obstacle


class StorageFailure(Exception):
    """The storage refused a write or a sync. Final: stop the process, recover at the next start."""


class File(Protocol):
    """An open file. Opened, pinned, unpinned and closed on one thread; the rest is safe on any."""

    @property
    def descriptor(self) -> int:
        """The operating system's descriptor of a pinned file, -1 if there is none."""

    def size(self) -> int:
        """The file's size in bytes."""

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers` from `position` on, or raise; then part may have been written."""

    def read(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file. May wait for the disk."""

    def read_now(self, size: int, position: int) -> Buffer | None:
        """Read as `read` does, but return None where the read would wait for the disk."""

    def range_now(self, size: int, position: int) -> FileRange | None:
        """Return bytes of the file to be sent without a copy. None: read them. Reads nothing."""

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros, to `size` bytes."""

    def sync(self) -> None:
        """Make all bytes written, and the size, durable. A failure is final: never try again."""

    def pin(self) -> None:
        """Keep the file open until `unpin`, also if it is closed meanwhile."""

    def unpin(self) -> None:
        """End one `pin`."""

    def close(self) -> None:
        """Close the file, once the last pin has ended."""


class Facts(NamedTuple):
    """What is known of a name without opening it."""

    size_bytes: int
    #: When its bytes, or the names in it, last changed. Good for comparison only.
    changed_ns: int


class FileSystem(Protocol):
    """Directories and names."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; `create` makes the file if it is missing."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory has that name."""

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted. Raises `FileNotFoundError`."""

    def facts(self, path: str) -> Facts:
        """Size and time of a file or directory, open or not. Raises `FileNotFoundError`."""

    def make_directory(self, path: str) -> None:
        """Make a directory, and its parents, unless it exists."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing a file of the target's name."""

    def unlink(self, path: str) -> None:
        """Delete a file's name. Open files remain readable."""

    def free_bytes(self) -> int:
        """Return how many bytes this process may still add to files. Does not wait.

        Raises StorageFailure if the root was deleted: bytes that are written from then on would be
        lost with the process.
        """

    def close(self) -> None:
        """Give back what this object holds; nothing is called after it."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: str) -> None:
        """Make the names in this directory durable (not those in directories below)."""

    @property
    def can_sync_all(self) -> bool:
        """Whether `sync_all` works here."""

    def sync_all(self) -> None:
        """Make everything on this file system durable. A failure is final."""

    def lock(self, path: str) -> Callable[[], None]:
        """Lock a file, created if missing, against other processes, Kafka too. Returns the release.

        Raises `BlockingIOError` when another process has the lock.
        """


class DiskFiles:
    """The operating system's files.

    `sync_all` is syncfs(2) on the file system that holds `root`, where that covers everything and
    reports write-back errors (`sync_all`). It reports those that happened since its descriptor was
    opened, so the descriptor is opened at the start.
    The kernel reports each error once, to one caller, whose own file may be whole. So after one
    error every later call fails too.
    """

    def __init__(self, root: str, *, open_max: int = sys.maxsize) -> None:
        """`open_max`: how many descriptors the files may have at once."""
        os.makedirs(root, exist_ok=True)
        self._path = root
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        #: Why `sync_all` does not work here; None: it does.
        self.sync_all_obstacle = obstacle(root, self._root)
        self._syncfs = None if self.sync_all_obstacle else find_syncfs()
        self._syncing_all = Lock()
        self._sync_all_failure: OSError | None = None
        sync_all = None if self._syncfs is None else self.sync_all
        self.descriptors = Descriptors(open_max, sync_all)

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        return self.descriptors.open(path, create=create)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def facts(self, path: str) -> Facts:
        found = os.stat(path)
        return Facts(found.st_size, found.st_mtime_ns)

    def make_directory(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from error

    def rename(self, source: str, target: str) -> None:
        self.descriptors.rename(source, target)

    def unlink(self, path: str) -> None:
        self.descriptors.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @property
    def can_sync_all(self) -> bool:
        return self._syncfs is not None

    def sync_all(self) -> None:
        assert self._syncfs is not None
        with self._syncing_all:
            if self._sync_all_failure is not None:
                raise self._sync_all_failure
            try:
                self._syncfs(self._root)
            except OSError as error:
                self._sync_all_failure = error
                raise

    def free_bytes(self) -> int:
        # Some file systems do not count the links of a directory: there its name is looked up.
        if not os.fstat(self._root).st_nlink and not self._has_its_name():
            raise StorageFailure(f"{self._path} was deleted, and all that was in it")
        facts = os.fstatvfs(self._root)
        return facts.f_bavail * facts.f_frsize

    def _has_its_name(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._root), os.stat(self._path))
        except OSError:
            return False

    def lock(self, path: str) -> Callable[[], None]:
        return lock_file(path, create=True)

    def close(self) -> None:
        """Release the descriptor kept for `sync_all`."""
        with contextlib.suppress(OSError):
            os.close(self._root)


def lock_file(path: str, *, create: bool) -> Callable[[], None]:
    """Lock a file against other processes, Kafka too. Returns the release.

    Raises `BlockingIOError` when another process has the lock, other OSErrors where the file cannot
    be opened or locked.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Java takes this kind and does not see the other. It alone would not do: any close of the
        # file in this process ends it.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return partial(os.close, descriptor)
