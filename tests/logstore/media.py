"""What is wrong with the medium below a simulated disk. It outlives every process and every crash.

Everything is found by its path. A sector that cannot be read gives EIO, whatever process asks.
Rotten bytes are others than were written, and say nothing: they changed by themselves, or a write
that was reported as done is not there, or it is in another place. `mend` is what an operator does
who copies the bytes from elsewhere.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple


class Rot(NamedTuple):
    """Bytes that are not what was written there."""

    path: str
    position: int
    was: bytes
    now: bytes


class _Sector(NamedTuple):
    path: str
    position: int
    end: int


class Media:
    """The damage of one disk."""

    def __init__(self) -> None:
        self.rotten: list[Rot] = []
        self._unreadable: list[_Sector] = []
        #: Every path that was ever damaged.
        self.damaged: set[str] = set()

    def break_sector(self, path: str, position: int, size: int) -> None:
        """Let every read of these bytes fail."""
        self.damaged.add(path)
        self._unreadable.append(_Sector(path, position, position + size))

    def note_rot(self, rot: Rot) -> None:
        """Remember what the bytes were."""
        self.damaged.add(rot.path)
        self.rotten.append(rot)

    def mend_sectors(self) -> None:
        """Let everything be read again."""
        self._unreadable.clear()

    def check_read(self, path: str, position: int, size: int) -> None:
        """Raise EIO where one of the bytes cannot be read."""
        for each in self._unreadable:
            if each.path == path and each.position < position + size and position < each.end:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
