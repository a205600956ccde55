"""Small files beside a log's segments: snapshots, aborted-transaction indexes, checkpoints.

`SmallFiles` knows how they are written and found, in any directory. `FileAttachments` are those of
one ledger: what they leave unsynced becomes durable with its appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from logstore.disk.barriers import TURN, Barrier, Procedure, perform
from logstore.disk.files import Buffer, File, FileSystem
from logstore.disk.pieces import Piece
from logstore.segments.names import DELETED, LEFTOVER_SUFFIXES, SEGMENT_SUFFIXES, UNFINISHED
from logstore.segments.unsynced import UnsyncedBytes, UnsyncedNames
from logstore.sync.group_commit import CommittedLedger, GroupCommit, LedgerClosed, Waiter

_NOT_ATTACHMENTS = (*SEGMENT_SUFFIXES, *LEFTOVER_SUFFIXES)


class SmallFiles:
    """The small files of one directory, which must exist before anything is written.

    A file that was appended to stays open, in `dirty`, until a sync takes it.
    """

    __slots__ = ("_directory", "_files", "_names", "dirty")

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        #: All names, while they are known without asking the disk.
        self._names: set[str] | None = None
        self.dirty: dict[str, File] = {}

    def remember(self, names: Iterable[str]) -> None:
        """Rely on these names of the directory, and do not list it again, until `forget`."""
        self._names = {name for name in names if not name.endswith(_NOT_ATTACHMENTS)}

    def forget(self) -> None:
        """Ask the directory itself from here on: others change it too."""
        self._names = None

    def write(self, name: str, data: Buffer, *, sync: bool) -> None:
        """Replace a file atomically, by renaming a finished one over it."""
        perform(self._files, self.replacing(name, ((0, data),), sync=sync))

    def replacing(self, name: str, pieces: Iterable[Piece], *, sync: bool) -> Procedure[None]:
        """Replace a file: the finished file first, then its name. Durably with `sync`.

        Others get their turn between two pieces.
        """
        unfinished = self._path(name + UNFINISHED)
        file = self._files.open(unfinished, create=True)
        try:
            if file.size():
                file.truncate(0)
            for number, (position, data) in enumerate(pieces):
                if number:
                    yield TURN
                if data:
                    file.write((data,), position)
            if sync:
                # Its bytes come before its name: the name must never stand for a torn file.
                yield Barrier((file,))
        finally:
            file.close()
        # What is appended from here on goes to the new file.
        self._let_go(name)
        self._files.rename(unfinished, self._path(name))
        self._note(name)
        if sync:
            yield Barrier((), (self._directory,))

    def append(self, name: str, data: Buffer) -> tuple[int, bool]:
        """Append to a file; return where, and whether the append made the file.

        A new file's name is not durable yet.
        """
        file = self.dirty.get(name)
        is_new = False
        if file is None:
            # Opened once for all appends until a sync takes it.
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

    def names(self) -> list[str]:
        if self._names is not None:
            return sorted(self._names)
        try:
            names = self._files.list(self._directory)
        except FileNotFoundError:
            return []
        return [name for name in names if not name.endswith(_NOT_ATTACHMENTS)]

    def delete(self, name: str) -> None:
        # A sync would only bring the deleted bytes to the disk.
        self._let_go(name)
        if self._names is not None:
            if name not in self._names:
                return
            self._names.remove(name)
        if self._files.exists(self._path(name)):
            self._files.unlink(self._path(name))

    def put_aside(self, names: Iterable[str]) -> list[str]:
        """Rename those files that exist, to end in DELETED; return their paths then."""
        paths = []
        for name in names:
            self._let_go(name)
            if self._names is not None:
                if name not in self._names:
                    continue
                self._names.remove(name)
            path = self._path(name)
            if self._files.exists(path):
                self._files.rename(path, path + DELETED)
                paths.append(path + DELETED)
        return paths

    def close(self) -> None:
        """Close all files. One that is pinned stays open until the pin ends."""
        for name in list(self.dirty):
            self._let_go(name)

    def take_dirty(self) -> list[File]:
        """Return the files that were appended to, for a sync and a close, and hold them no more."""
        taken = list(self.dirty.values())
        self.dirty.clear()
        return taken

    def _note(self, name: str) -> None:
        if self._names is not None:
            self._names.add(name)

    def _let_go(self, name: str) -> None:
        file = self.dirty.pop(name, None)
        if file is not None:
            file.close()

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


class FileAttachments:
    """The `Attachments` of a `FileLedger`."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        names: UnsyncedNames,
        unsynced: UnsyncedBytes,
        ledger: CommittedLedger,
        group_commit: GroupCommit,
        discard: Callable[[Sequence[str]], None],
    ) -> None:
        """`ledger` is what group commit syncs for them; `discard` deletes files, now or later."""
        self.small_files = SmallFiles(files, directory)
        self._files = files
        self._directory = directory
        self._unsynced_names = names
        self._unsynced = unsynced
        #: None once it is closed.
        self._ledger: CommittedLedger | None = ledger
        self._group_commit = group_commit
        self._discard = discard

    def write(self, name: str, data: Buffer, *, sync: bool = True) -> None:
        with self._group_commit.storing(self._directory):
            perform(self._files, self.replacing(name, ((0, data),), sync=sync))

    def replacing(
        self, name: str, pieces: Iterable[Piece], *, sync: bool = True
    ) -> Procedure[None]:
        with self._group_commit.storing(self._directory):
            self._unsynced_names.ensure_directory()
        yield from self.small_files.replacing(name, pieces, sync=sync)
        if not sync:
            self._unsynced_names.add()
        elif self._unsynced_names.is_new_directory:
            # A durable file in a directory without a durable name would be lost with it.
            yield Barrier((), self._unsynced_names.both)

    def carry_out(
        self, procedure: Procedure[None], is_wanted: Callable[[], bool], done: Waiter
    ) -> None:
        self._group_commit.carry_out(procedure, is_wanted, done)

    def close(self) -> None:
        """Close all files; nothing is appended any more."""
        self.small_files.close()
        # The two hold each other. Without this both wait for a garbage collection.
        self._ledger = None

    def append(self, name: str, data: Buffer) -> None:
        if self._ledger is None:
            raise LedgerClosed("closed: nothing is appended")
        self._group_commit.touch(self._ledger)
        with self._group_commit.storing(self._directory):
            self._unsynced_names.ensure_directory()
            position, is_new = self.small_files.append(name, data)
        if self._group_commit.has_journal:
            self._unsynced.note_written(name, position, data)
        if is_new:
            self._unsynced_names.add()

    def read(self, name: str) -> bytes | None:
        return self.small_files.read(name)

    def names(self) -> list[str]:
        return self.small_files.names()

    def delete(self, name: str) -> None:
        with self._group_commit.storing(self._directory):
            self.small_files.delete(name)

    def discard(self, names: Iterable[str]) -> None:
        with self._group_commit.storing(self._directory):
            # An unlink may take a millisecond, and a step of retention would wait for several.
            if paths := self.small_files.put_aside(names):
                self._discard(paths)
