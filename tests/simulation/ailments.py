"""What befalls the disk of a history: it is full for a while, fails once, cannot be read, rots, or
loses and misplaces writes that it has reported as done.

Nothing of it is forgiven silently. A full disk and an operation that fails may cost no client
anything but time. Of a sector that cannot be read, of a rotten byte, of a write that is not there
and of one that stands in another place the broker or a reader may complain; what is lost with them
the broker must have said.

The last write to the journal is not lost: with power gone too there would be no trace of it, and no
broker with one disk could tell.
"""

from __future__ import annotations

import errno
from random import Random

from logstore.sync.journal import JOURNAL
from tests.logstore.file_content import Synced
from tests.logstore.simulated_disk import SimulatedDisk

_OPERATIONS = ("read", "write", "write", "truncate", "sync", "sync_directory", "sync_all", "name")
#: After so many failed starts in a row an operator copies the damaged bytes from elsewhere.
_PATIENCE = 3
#: What coordinators' logs, markers and the journal may still use when clients may not.
RESERVE_BYTES = 30_000
_SECTOR_BYTES = 512


class Ailments:
    """Draws from its own chance, so that a history without it stays what it was."""

    def __init__(self, random: Random) -> None:
        #: How often each thing happened.
        self.counts = dict.fromkeys(("full", "error", "sector", "rot", "lost", "misdirected"), 0)
        self._random = random
        self._kinds = random.sample(sorted(self.counts), random.randint(1, 2))
        self._full_until_s = 0.0
        self._failed_starts = 0
        self._failures = 0

    def strike(self, disk: SimulatedDisk, now_s: float) -> None:
        """Let something happen to the disk, or nothing."""
        if disk.space_left is not None and now_s >= self._full_until_s:
            disk.space_left = None
        if self._random.random() < 0.5:
            return
        kind = self._random.choice(self._kinds)
        if kind == "full":
            self._full_until_s = now_s + self._random.choice((0.3, 1.0, 2.0))
            disk.space_left = self._random.choice((0, 500, 20_000, 40_000))
        elif kind == "error":
            after = self._random.randrange(20)
            disk.fail(self._random.choice(_OPERATIONS), errno.EIO, after=after)
        elif kind in ("lost", "misdirected"):
            if not self._spoil_write(disk, kind):
                return
        elif (path := self._victim(disk)) is None:
            return
        elif kind == "sector":
            position = self._random.randrange(disk.facts(path).size_bytes)
            disk.media.break_sector(path, position // _SECTOR_BYTES * _SECTOR_BYTES, _SECTOR_BYTES)
        else:
            position = self._random.randrange(disk.facts(path).size_bytes)
            disk.rot(path, position, 1 << self._random.randrange(8))
        self.counts[kind] += 1

    def _spoil_write(self, disk: SimulatedDisk, kind: str) -> bool:
        """Lose or misdirect a write that was reported as done. False: there is none."""
        writes: list[tuple[str, Synced]] = []
        for path in disk.paths():
            synced = disk.synced_writes(path)
            writes += [(path, each) for each in synced[: -1 if path.endswith(JOURNAL) else None]]
        if not writes:
            return False
        if self._random.random() < 0.3:
            # One of all that stand there: the file where most depends on each.
            writes = [each for each in writes if each[0].endswith(JOURNAL)] or writes
        path, lost = self._random.choice(writes)
        target = self._victim(disk)
        if kind == "lost" or target is None:
            disk.lose_write(path, lost)
            return True
        # To another block of the disk: at the same place within it.
        sectors = disk.facts(target).size_bytes // _SECTOR_BYTES
        place = self._random.randrange(sectors + 1) * _SECTOR_BYTES + lost.position % _SECTOR_BYTES
        disk.misdirect_write(path, lost, target, place)
        return True

    def _victim(self, disk: SimulatedDisk) -> str | None:
        """Return a file that has bytes, of any kind."""
        found = [path for path in disk.paths() if disk.facts(path).size_bytes]
        return self._random.choice(found) if found else None

    def before_start(self, disk: SimulatedDisk, failures: list[BaseException]) -> None:
        """Mend the disk where brokers do not start again and again; a full one gets room."""
        if len(failures) == self._failures:
            self._failed_starts = 0
            return
        self._failures = len(failures)
        self._failed_starts += 1
        if self._failed_starts >= _PATIENCE:
            self.end(disk)

    def end(self, disk: SimulatedDisk) -> None:
        """Give the disk room, and copy damaged bytes from elsewhere."""
        disk.space_left = None
        disk.mend()
