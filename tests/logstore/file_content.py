"""What a file of a simulated disk holds: as processes see it, on the disk, and in between."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import NamedTuple

#: The time of all disks.
clock = count(1)
#: So many writes of a file are remembered, to be lost afterwards.
_RECENT = 8


class Synced(NamedTuple):
    """A write that a sync has reported as done: what stood there before, and what does now."""

    position: int
    was: bytes
    data: bytes


@dataclass(slots=True, frozen=True)
class Write:
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if self.position > len(content):
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data


@dataclass(slots=True, frozen=True)
class Truncate:
    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


@dataclass(slots=True, eq=False)
class FileContent:
    """A file without a name: what processes see, what is on disk, what lies between."""

    seen: bytearray = field(default_factory=bytearray)
    stored: bytearray = field(default_factory=bytearray)
    unsynced: list[Write | Truncate] = field(default_factory=list)
    #: Another number after each change.
    changed: int = field(default_factory=clock.__next__)
    #: The last writes that were synced, in their order.
    recent: deque[Synced] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def change(self, change: Write | Truncate) -> None:
        change.apply(self.seen)
        self.changed = next(clock)
        self.unsynced.append(change)

    def sync(self) -> None:
        if not self.unsynced:
            return
        for change in self.unsynced:
            if isinstance(change, Write) and change.data:
                end = change.position + len(change.data)
                was = bytes(self.stored[change.position : end]).ljust(len(change.data), b"\0")
                self.recent.append(Synced(change.position, was, change.data))
            change.apply(self.stored)
        self.unsynced.clear()

    def replace(self, position: int, was: bytes, now: bytes) -> None:
        """Change these bytes where they all still are what they were."""
        end = position + len(was)
        for content in (self.seen, self.stored):
            if content[position:end] == was:
                content[position:end] = now

    def lose_pages(self, random: Random) -> None:
        """A sync has failed: of the changes some are on the disk, none will be written any more."""
        for change in self.unsynced:
            if random.random() < 0.5:
                change.apply(self.stored)
        self.unsynced.clear()

    def after_crash(self, random: Random) -> FileContent:
        stored = bytearray(self.stored)
        for change in self.unsynced:
            for part in _survivors(change, random):
                part.apply(stored)
        writes = [change for change in self.unsynced if isinstance(change, Write)]
        grown = max((write.position + len(write.data) for write in writes), default=0)
        if grown > len(stored) and random.random() < 0.2:
            stored.extend(bytes(random.randint(1, grown - len(stored))))
        return FileContent(bytearray(stored), stored, recent=self.recent.copy())


def _survivors(change: Write | Truncate, random: Random) -> list[Write | Truncate]:
    """What an unsynced change has left on the disk: nothing, all of it, or torn parts."""
    fate = random.random()
    if fate < 0.35:
        return []
    if fate < 0.7 or isinstance(change, Truncate) or len(change.data) < 2:
        return [change]
    cuts = sorted(random.sample(range(len(change.data) + 1), min(4, len(change.data) + 1)))
    if random.random() < 0.5:
        cuts[0] = 0  # a beginning, as if the rest had not been reached
    return [
        Write(change.position + start, change.data[start:end])
        for start, end in zip(cuts[::2], cuts[1::2], strict=False)
    ]
