"""A file system in memory that can lose power, lose pages, and fail.

`kill -9` leaves the page cache alone, so it never tests a sync; this does. Every file and every
directory is kept twice: as processes see it, and as it stands on the disk, with the list of changes
in between. A sync moves that list to the disk. `crash` keeps the disk and an arbitrary part of what
was not synced:

- of every file any subset of the writes and truncations, each write torn at any bytes, holes zero;
  a file may have grown without the bytes that made it grow;
- of every directory any subset of the names made, renamed (atomically) and unlinked, whatever
  became of the files.

`kill` ends only the process: all it wrote is seen afterwards, still unsynced. A sync that fails
takes the changes off the list without having done them: the pages are clean in memory and absent
on the disk, which is what Linux does (Rebello et al., "Can Applications Recover from fsync
Failures?", 2020).

All that is random comes from the `Random` given, so a seed is a story that can be told again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import TypeAlias

from logstore.disk.file_range import FileRange
from logstore.disk.files import Buffer, Facts, File
from tests.logstore.file_content import FileContent, Synced, Truncate, Write, clock
from tests.logstore.media import Media, Rot


class PowerLost(Exception):
    """The disk has lost power in mid-operation; continue with `SimulatedDisk.crash`."""


@dataclass(slots=True, eq=False)
class _Directory:
    """Names and what they stand for. `unsynced` holds whole changes, each of them atomic."""

    seen: dict[str, _Node] = field(default_factory=dict)
    stored: dict[str, _Node] = field(default_factory=dict)
    unsynced: list[_NameChange] = field(default_factory=list)
    #: Another number after each change of a name.
    changed: int = field(default_factory=clock.__next__)


_Node: TypeAlias = FileContent | _Directory


@dataclass(slots=True, eq=False)
class _NameChange:
    """Names set (or, with None, removed) together: a rename is two, in one or two directories."""

    names: list[tuple[_Directory, str, _Node | None]]
    is_stored: bool = False

    def see(self) -> None:
        for directory, name, node in self.names:
            _set(directory.seen, name, node)
        for directory in dict.fromkeys(directory for directory, _, _ in self.names):
            directory.unsynced.append(self)
            directory.changed = next(clock)

    def store(self) -> None:
        if not self.is_stored:
            for directory, name, node in self.names:
                _set(directory.stored, name, node)
            self.is_stored = True


def _set(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class SimulatedFile:
    """An open file of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, path: str, content: FileContent) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._pins = 0
        self._closing = False

    @property
    def path(self) -> str:
        return self._path

    @property
    def descriptor(self) -> int:
        return -1

    def size(self) -> int:
        self._check()
        return len(self._content.seen)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        self._check()
        data = b"".join(buffers)
        fits = self._disk.take_space(max(0, position + len(data) - len(self._content.seen)))
        try:
            self._disk.before("write")
        except (OSError, PowerLost):
            # Any beginning of it may have been written.
            self._content.change(Write(position, data[: self._disk.random.randint(0, len(data))]))
            raise
        if fits is not None:
            written = max(0, len(self._content.seen) + fits - position)
            self._content.change(Write(position, data[:written]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._content.change(Write(position, data))

    def read(self, size: int, position: int) -> bytes:
        self._check()
        self._disk.before_read(self._path, position, size)
        return bytes(self._content.seen[position : position + size])

    def range_now(self, size: int, position: int) -> FileRange | None:
        return None  # No kernel has it.

    def read_now(self, size: int, position: int) -> Buffer | None:
        return None if self._disk.is_cold else self.read(size, position)

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.before("truncate")
        self._content.change(Truncate(size))

    def sync(self) -> None:
        self._check()
        try:
            self._disk.before("sync")
        except OSError:
            self._content.lose_pages(self._disk.random)
            raise
        self._content.sync()

    def pin(self) -> None:
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        assert self._pins >= 0

    def close(self) -> None:
        if not self._closing:
            self._disk.open_files -= 1
        self._closing = True

    def _check(self) -> None:
        assert self._pins or not self._closing, f"{self._path} is closed"


class SimulatedDisk:
    """A `FileSystem`. Paths are absolute; the root directory is there."""

    def __init__(self, *, seed: int = 0, can_sync_all: bool = True) -> None:
        self.random = Random(seed)
        #: Nothing is in memory: `read_now` says so every time.
        self.is_cold = False
        #: Bytes that may still be added to files; None: without end.
        self.space_left: int | None = None
        self.media = Media()
        #: Files open at the moment, to find leaks.
        self.open_files = 0
        #: How many changes and syncs there were: the points at which power can be lost.
        self.operations = 0
        #: Called when power goes: whatever runs on after that is of a process that is no more.
        self.on_power_lost: Callable[[], None] = _nothing
        self._can_sync_all = can_sync_all
        self._root = _Directory()
        self._failures: dict[str, list[tuple[int, int]]] = {}
        self._power_lost_at: int | None = None
        self._locks: set[str] = set()

    # Failures

    def fail(self, operation: str, code: int, *, after: int = 0) -> None:
        """Let an operation fail with errno `code`, once, after it has succeeded `after` times.

        Operations: read, write, truncate, sync, sync_directory, sync_all, name.
        """
        self._failures.setdefault(operation, []).append((after, code))

    def lose_power_after(self, operations: int) -> None:
        """Raise `PowerLost` in mid-operation, after so many more of them."""
        self._power_lost_at = self.operations + operations

    def keep_power(self) -> None:
        """Lose no power after all."""
        self._power_lost_at = None

    def before(self, operation: str) -> None:
        """For the disk's files: count an operation, fail where that was asked for."""
        if self._power_lost_at is not None and self.operations >= self._power_lost_at:
            self.on_power_lost()
            raise PowerLost
        self.operations += 1
        self._fail_if_due(operation)

    def before_read(self, path: str, position: int, size: int) -> None:
        """For the disk's files: fail where that was asked for, or where the medium is damaged."""
        self.media.check_read(path, position, size)
        self._fail_if_due("read")

    def _fail_if_due(self, operation: str) -> None:
        if not (waiting := self._failures.get(operation)):
            return
        due = [code for after, code in waiting if after == 0]
        self._failures[operation] = [(after - 1, code) for after, code in waiting if after > 0]
        if due:
            raise OSError(due[0], os.strerror(due[0]), operation)

    def take_space(self, size: int) -> int | None:
        """For the disk's files: use up space. None, or how much of `size` there was."""
        if self.space_left is None:
            return None
        taken = min(size, self.space_left)
        self.space_left -= taken
        return None if taken == size else taken

    def free_bytes(self) -> int:
        """Return how many bytes may still be added to files."""
        return 1 << 40 if self.space_left is None else self.space_left

    def close(self) -> None:
        """There is nothing to give back: the disk outlives its broker."""

    def crash(self, random: Random) -> SimulatedDisk:
        """Lose power: the disk as the next process finds it, everything in it on the disk."""
        disk = self._successor(random)
        disk._root = _Crash(random).directory(self._root)
        return disk

    def kill(self, random: Random) -> SimulatedDisk:
        """End the process: the next one sees all that was written, synced or not."""
        disk = self._successor(random)
        disk._root = self._root
        return disk

    def _successor(self, random: Random) -> SimulatedDisk:
        disk = SimulatedDisk(seed=random.getrandbits(32), can_sync_all=self._can_sync_all)
        disk.media = self.media
        return disk

    # Damage

    def paths(self) -> list[str]:
        """Return every file that processes see."""
        found: list[str] = []
        waiting: list[tuple[str, _Directory]] = [("", self._root)]
        while waiting:
            above, directory = waiting.pop()
            for name, node in sorted(directory.seen.items()):
                path = f"{above}/{name}"
                if isinstance(node, _Directory):
                    waiting.append((path, node))
                else:
                    found.append(path)
        return found

    def rot(self, path: str, position: int, mask: int) -> None:
        """Change a byte, in memory and on the disk, without a word."""
        was = self._content(path).seen[position]
        self._spoil(Rot(path, position, bytes((was,)), bytes((was ^ mask,))))

    def synced_writes(self, path: str) -> list[Synced]:
        """Return the last writes that were reported as done and are there, in their order."""
        node = self._content(path)
        return [
            each
            for each in node.recent
            if node.stored[each.position : each.position + len(each.data)] == each.data
        ]

    def lose_write(self, path: str, lost: Synced) -> None:
        """Let what was there before stand in place of a write that was reported as done."""
        self._spoil(Rot(path, lost.position, lost.data, lost.was))

    def misdirect_write(self, path: str, lost: Synced, to_path: str, to_position: int) -> None:
        """Let a write that was reported as done stand in another place, and not in its own."""
        self.lose_write(path, lost)
        was = bytes(self._content(to_path).stored[to_position : to_position + len(lost.data)])
        self._spoil(Rot(to_path, to_position, was, lost.data[: len(was)]))

    def _spoil(self, rot: Rot) -> None:
        self._content(rot.path).replace(rot.position, rot.was, rot.now)
        self.media.note_rot(rot)

    def _content(self, path: str) -> FileContent:
        node = self._find(path)
        assert isinstance(node, FileContent)
        return node

    def mend(self) -> None:
        """Let nothing fail, and give rotten bytes back that nothing has overwritten."""
        self._failures.clear()
        self.media.mend_sectors()
        rotten, self.media.rotten = self.media.rotten, []
        for path, position, was, now in reversed(rotten):
            if isinstance(node := self._find(path), FileContent):
                node.replace(position, now, was)

    # Names

    def open(self, path: str, *, create: bool = False) -> File:
        directory, name = self._parent(path)
        node = directory.seen.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.before("name")
            node = FileContent()
            _NameChange([(directory, name, node)]).see()
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.open_files += 1
        return SimulatedFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def list(self, path: str) -> list[str]:
        return sorted(self._directory(path).seen)

    def facts(self, path: str) -> Facts:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return Facts(len(node.seen), node.changed)

    def make_directory(self, path: str) -> None:
        directory = self._root
        for name in _parts(path):
            if name not in directory.seen:
                self.before("name")
                _NameChange([(directory, name, _Directory())]).see()
            below = directory.seen[name]
            assert isinstance(below, _Directory)
            directory = below

    def rename(self, source: str, target: str) -> None:
        from_directory, from_name = self._parent(source)
        to_directory, to_name = self._parent(target)
        if (node := from_directory.seen.get(from_name)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self.before("name")
        _NameChange([(from_directory, from_name, None), (to_directory, to_name, node)]).see()

    def unlink(self, path: str) -> None:
        directory, name = self._parent(path)
        if name not in directory.seen:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.before("name")
        _NameChange([(directory, name, None)]).see()

    def remove_directory(self, path: str) -> None:
        if self._directory(path).seen:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self.unlink(path)

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self.before("sync_directory")
        _sync_names(directory)

    @property
    def can_sync_all(self) -> bool:
        return self._can_sync_all

    def sync_all(self) -> None:
        try:
            self.before("sync_all")
        except OSError:
            for node in _everything_below(self._root):
                if isinstance(node, FileContent):
                    node.lose_pages(self.random)
            raise
        for node in _everything_below(self._root):
            if isinstance(node, FileContent):
                node.sync()
            else:
                _sync_names(node)

    def lock(self, path: str) -> Callable[[], None]:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.open(path, create=True).close()
        self._locks.add(path)
        return lambda: self._locks.discard(path)

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in _parts(path):
            if not isinstance(node, _Directory):
                return None
            node = node.seen.get(name)
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        head, _, name = path.rpartition("/")
        return self._directory(head), name


def _nothing() -> None:
    """Do nothing: the default for a callback."""


@lru_cache(maxsize=10_000)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _sync_names(directory: _Directory) -> None:
    for change in directory.unsynced:
        change.store()
    directory.unsynced.clear()


def _everything_below(directory: _Directory) -> list[_Node]:
    """The directory and every node it has, had, or will have; each once."""
    found: dict[int, _Node] = {}
    waiting: list[_Node] = [directory]
    while waiting:
        node = waiting.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        if isinstance(node, _Directory):
            waiting += [*node.seen.values(), *node.stored.values()]
            waiting += [n for change in node.unsynced for _, _, n in change.names if n is not None]
    return list(found.values())


@dataclass(slots=True)
class _Crash:
    """One loss of power: the fate of every node and change, decided once."""

    random: Random
    _copies: dict[int, _Node] = field(default_factory=dict)
    _survives: dict[int, bool] = field(default_factory=dict)

    def directory(self, directory: _Directory) -> _Directory:
        names = dict(directory.stored)
        for change in directory.unsynced:
            if id(change) not in self._survives:
                self._survives[id(change)] = change.is_stored or self.random.random() < 0.5
            for where, name, node in change.names if self._survives[id(change)] else ():
                if where is directory:
                    _set(names, name, node)
        after = _Directory()
        for name, node in names.items():
            after.seen[name] = after.stored[name] = self._copy(node)
        return after

    def _copy(self, node: _Node) -> _Node:
        if id(node) not in self._copies:
            self._copies[id(node)] = (
                node.after_crash(self.random)
                if isinstance(node, FileContent)
                else self.directory(node)
            )
        return self._copies[id(node)]
