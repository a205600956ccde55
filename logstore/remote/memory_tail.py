"""How much of all logs' batches is kept in memory: the newest, over all logs of a node.

The batches that were committed first are evicted first. Batches that are not durable yet are
neither counted nor evicted.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

#: Memory of durable batches, over all logs of a node.
TAIL_BYTES = 64 << 20


class Evictable(Protocol):
    """A log of which batches are in memory."""

    def evict_below(self, offset: int) -> None:
        """Keep no batch below `offset` in memory any more."""


class MemoryTail:
    """The account that the logs of one node share."""

    def __init__(self, bytes_max: int = TAIL_BYTES) -> None:
        self._bytes_max = bytes_max
        self._memory_bytes = 0
        self._parts: deque[tuple[Evictable, int, int]] = deque()

    def add(self, log: Evictable, end_offset: int, memory_bytes: int) -> None:
        """Account for a log's batches below `end_offset` that were not counted before."""
        self._parts.append((log, end_offset, memory_bytes))
        self._memory_bytes += memory_bytes
        while self._memory_bytes > self._bytes_max:
            oldest, below, freed_bytes = self._parts.popleft()
            self._memory_bytes -= freed_bytes
            oldest.evict_below(below)
