"""Small files beside a log's segments: snapshots, aborted-transaction indexes, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

from logstore.disk.barriers import Barrier, Procedure
from logstore.disk.files import Buffer, File, FileSystem
from logstore.segments.names import (
    LEFTOVER_SUFFIXES,
    SEGMENT_SUFFIXES,
    UNFINISHED,
)

_NOT_ATTACHMENTS = (*SEGMENT_SUFFIXES, *LEFTOVER_SUFFIXES)


class Attachments:
    """The attachments of one directory, which must exist before anything is written.

    Appended ones stay open, in `dirty`, until somebody syncs them.
    """

    __slots__ = ("_directory", "_files", "_names", "dirty")

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        #: All there are, while that is known.
        self._names: set[str] | None = None
        self.dirty: dict[str, File] = {}

    def remember(self, names: Iterable[str]) -> None:
        """Take it that the directory has these names, and ask it no more; until `forget`."""
        self._names = {name for name in names if not name.endswith(_NOT_ATTACHMENTS)}

    def forget(self) -> None:
        """From here on others change the directory too."""
        self._names = None

    def write(self, name: str, data: Buffer, *, sync: bool) -> None:
        """Replace one atomically, by renaming a finished file over it."""
        for barrier in self.replacing(name, data):
            if sync:
                for file in barrier.files:
                    file.sync()
                for directory in barrier.directories:
                    self._files.sync_directory(directory)

    def replacing(self, name: str, data: Buffer) -> Procedure[None]:
        """Replace one durably: a finished file first, then its name."""
        unfinished = self._path(name + UNFINISHED)
        file = self._files.open(unfinished, create=True)
        try:
            if file.size():
                file.truncate(0)
            if data:
                file.write((data,), 0)
            yield Barrier((file,))
        finally:
            file.close()
        self._let_go(name)
        self._files.rename(unfinished, self._path(name))
        self._note(name)
        yield Barrier((), (self._directory,))

    def append(self, name: str, data: Buffer) -> tuple[int, bool]:
        """Append to one; return where, and whether that made a new file, whose name is not durable
        yet."""
        file = self.dirty.get(name)
        is_new = False
        if file is None:
            is_new = not self._files.exists(self._path(name))
            self._note(name)
            file = self.dirty[name] = self._files.open(self._path(name), create=True)
        position = file.size()
        file.write((data,), position)
        return position, is_new

    def read(self, name: str) -> bytes | None:
        if self._names is not None and name not in self._names:
            return None
        try:
            file = self._files.open(self._path(name))
        except FileNotFoundError:
            return None
        try:
            return file.read(file.size(), 0)
        finally:
            file.close()

    def list(self) -> list[str]:
        if self._names is not None:
            return sorted(self._names)
        try:
            names = self._files.list(self._directory)
        except FileNotFoundError:
            return []
        return [name for name in names if not name.endswith(_NOT_ATTACHMENTS)]

    def delete(self, name: str) -> None:
        self._let_go(name)
        if self._names is not None:
            if name not in self._names:
                return
            self._names.remove(name)
        if self._files.exists(self._path(name)):
            self._files.unlink(self._path(name))

    def close(self) -> None:
        for name in list(self.dirty):
            self._let_go(name)

    def _note(self, name: str) -> None:
        if self._names is not None:
            self._names.add(name)

    def _let_go(self, name: str) -> None:
        file = self.dirty.pop(name, None)
        if file is not None:
            file.close()

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
