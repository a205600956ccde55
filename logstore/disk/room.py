"""How much room a disk has left, and who may still write: the reserve of a data directory.

Clients' batches are refused while less than the reserve is free. So what a broker has decided can
still be written: the coordinators' logs, markers, snapshots and indexes of segments that end, the
journal, the catalog. Kafka's clients try a refused batch again, until there is room.

The file system is asked every `_MEASURE_MS`, sooner where as much was written as there was room
for, and for each batch while the disk is full.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: What a write raises that found no room: on the disk, or for this user.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
#: How old a measurement may be, and how long one that a write has disproved keeps clients out.
_MEASURE_MS = 100
_DISPROVED_MS = 1_000


class NoRoom(KafkaError):
    """There is no room for a client's batch now. Nothing of it was written."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, detail)


class Room:
    """The room on the disk of one data directory. On the event loop's thread."""

    def __init__(
        self,
        free_bytes: Callable[[], int],
        reserve_bytes: int,
        on_change: Callable[[bool, int], None],
        refusal: Callable[[int], str] = "the disk is full: {} bytes are free".format,
    ) -> None:
        """`on_change` is told when the disk has become full or has room again, and what is free.

        `refusal` is what a client is told, of what is free.
        """
        self._free_bytes = free_bytes
        self._reserve_bytes = reserve_bytes
        self._on_change = on_change
        self._refusal = refusal
        self.is_full = False
        #: The batches that were refused.
        self.refusals = 0
        self._left_bytes = 0
        self._now_ms = 0
        self._disproved_ms = -_DISPROVED_MS

    def check(self, size_bytes: int, now_ms: int) -> None:
        """Return if a client's batch of that size may be written.

        Raises NoRoom, and StorageFailure where the directory was deleted.
        """
        self._left_bytes -= size_bytes
        # A clock that was set back measures too.
        if self._left_bytes < 0 or not 0 <= now_ms - self._now_ms < _MEASURE_MS:
            self._measure(size_bytes, now_ms)

    def _measure(self, size_bytes: int, now_ms: int) -> None:
        self._now_ms = now_ms
        free_bytes = self._free_bytes()
        # A little more before clients may write again, or each freed block would be told.
        kept_bytes = self._reserve_bytes + (self._reserve_bytes // 8 if self.is_full else 0)
        self._left_bytes = free_bytes - kept_bytes - size_bytes
        # A clock that was set back must not keep clients out for as long.
        is_disproved = 0 <= now_ms - self._disproved_ms < _DISPROVED_MS
        is_full = self._left_bytes < 0 or is_disproved
        if is_full != self.is_full:
            self._become(is_full, free_bytes)
        if is_full:
            self._left_bytes = 0
            self.refusals += 1
            raise NoRoom(self._refusal(free_bytes))

    def ran_out(self) -> None:
        """Account for a client's batch whose write found no room, whatever was measured."""
        self.refusals += 1
        self._left_bytes = 0
        self._disproved_ms = self._now_ms
        if not self.is_full:
            self._become(True, self._free_bytes())

    def has_half_the_reserve(self) -> bool:
        """Whether work that can wait may go on: compaction. In any thread."""
        return self._free_bytes() >= self._reserve_bytes // 2

    def _become(self, is_full: bool, free_bytes: int) -> None:
        self.is_full = is_full
        self._on_change(is_full, free_bytes)
