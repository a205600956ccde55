"""Files as they would be: another file system, with changes over it that stay in memory.

For asking what a start would do without doing it. What lies below is read, never changed, and what
is written is kept only where it differs: a recovery writes most bytes again as they are. Nothing
here is durable, so the syncs do nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from logstore.disk.file_range import FileRange
from logstore.disk.files import Buffer, Facts, File, FileSystem


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class _Content:
    """The bytes of one file. Its methods take the file below; None: the overlay made the file."""

    def __init__(self, size: int) -> None:
        self.size = size
        #: The first so many bytes are those of the file below, unless a patch covers them.
        self.below_bytes = size
        self._patches: list[tuple[int, bytes]] = []

    def read(self, below: File | None, size: int, position: int) -> bytes:
        size = max(0, min(size, self.size - position))
        taken = max(0, min(size, self.below_bytes - position))
        data = below.read(taken, position) if below is not None and taken else b""
        if not self._patches and len(data) == size:
            return data
        found = bytearray(data.ljust(size, b"\0"))
        for at, patch in self._patches:
            first, end = max(at, position), min(at + len(patch), position + size)
            if first < end:
                found[first - position : end - position] = patch[first - at : end - at]
        return bytes(found)

    def write(self, below: File | None, data: bytes, position: int) -> None:
        if data and self.read(below, len(data), position) != data:
            self._patches.append((position, data))
            self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        self.size, self.below_bytes = size, min(size, self.below_bytes)
        cut = [(at, patch[: max(0, size - at)]) for at, patch in self._patches]
        self._patches = [(at, patch) for at, patch in cut if patch]


class _OverlayFile:
    """One open file of an overlay."""

    def __init__(self, content: _Content, below: File | None) -> None:
        self._content, self._below = content, below

    @property
    def descriptor(self) -> int:
        return -1

    def size(self) -> int:
        return self._content.size

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        for data in buffers:
            self._content.write(self._below, bytes(data), position)
            position += len(data)

    def read(self, size: int, position: int) -> bytes:
        return self._content.read(self._below, size, position)

    def range_now(self, size: int, position: int) -> FileRange | None:
        return None  # No kernel has it.

    def read_now(self, size: int, position: int) -> Buffer | None:
        return self.read(size, position)

    def truncate(self, size: int) -> None:
        self._content.truncate(size)

    def sync(self) -> None:
        """Nothing is durable here."""

    def pin(self) -> None:
        """The file stays open until `close`."""

    def unpin(self) -> None:
        """The file stays open until `close`."""

    def close(self) -> None:
        if self._below is not None:
            self._below.close()


class OverlayFiles:
    """A file system over another one, whose files and names it leaves as they are.

    Directories are not made, renamed or removed: a recovery does neither.
    """

    def __init__(self, below: FileSystem) -> None:
        self._below = below
        self._contents: dict[str, _Content] = {}
        #: What each changed name stands for: the path below, "" for a new file, None: no file.
        self._names: dict[str, str | None] = {}

    def open(self, path: str, *, create: bool = False) -> _OverlayFile:
        source = self._names.get(path, path)
        if source is None or (source and create and not self._below.exists(source)):
            if not create:
                raise _missing(path)
            source = self._names[path] = ""
        below = self._below.open(source) if source else None
        content = self._contents.get(path)
        if content is None:
            content = self._contents[path] = _Content(0 if below is None else below.size())
        return _OverlayFile(content, below)

    def exists(self, path: str) -> bool:
        source = self._names.get(path, path)
        return source is not None and (not source or self._below.exists(source))

    def list(self, path: str) -> list[str]:
        found = set(self._below.list(path))
        for changed, source in self._names.items():
            directory, _, name = changed.rpartition("/")
            if directory == path:
                (found.discard if source is None else found.add)(name)
        return sorted(found)

    def facts(self, path: str) -> Facts:
        source = self._names.get(path, path)
        if source is None:
            raise _missing(path)
        changed_ns = self._below.facts(source).changed_ns if source else 0
        content = self._contents.get(path)
        size = self._below.facts(source).size_bytes if content is None else content.size
        return Facts(size, changed_ns)

    def rename(self, source: str, target: str) -> None:
        self._names[target] = self._names.get(source, source)
        self._contents.pop(target, None)
        if source in self._contents:
            self._contents[target] = self._contents.pop(source)
        self._names[source] = None

    def unlink(self, path: str) -> None:
        if not self.exists(path):
            raise _missing(path)
        self._names[path] = None
        self._contents.pop(path, None)

    def make_directory(self, path: str) -> None:
        raise NotADirectoryError(path)

    def remove_directory(self, path: str) -> None:
        raise NotADirectoryError(path)

    def sync_directory(self, path: str) -> None:
        """Nothing is durable here."""

    @property
    def can_sync_all(self) -> bool:
        return True

    def sync_all(self) -> None:
        """Nothing is durable here."""

    def free_bytes(self) -> int:
        return self._below.free_bytes()

    def lock(self, path: str) -> Callable[[], None]:
        return self._below.lock(path)

    def close(self) -> None:
        """What lies below is closed by its owner."""
