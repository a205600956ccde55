"""The indexes of sealed segments that readers have loaded: as many as one account allows.

A segment of a gigabyte has up to five megabytes of them. A consumer that reads a log from its
beginning needs those of one segment at a time. So the least recently used ones are dropped where
all together hold more than the limit; the next read loads them again.
"""

from __future__ import annotations

from logstore.segments.segment import Segment

#: Enough for fifty readers of full segments of large batches, at the cost of one large fetch.
LIMIT_BYTES = 64 * 1024 * 1024


class ColdIndexes:
    """The account of all ledgers of a data directory. For the event loop's thread."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        #: The least recently used first, with the bytes that each holds.
        self._segments: dict[Segment, int] = {}

    def use(self, segment: Segment) -> None:
        """Account for the indexes of a sealed segment, which are needed now."""
        size_bytes = self._segments.pop(segment, None)
        if size_bytes is None:
            size_bytes = segment.index_memory_bytes
            self.held_bytes += size_bytes
        self._segments[segment] = size_bytes
        # The last one stays, however large.
        while self.held_bytes > self.limit_bytes and len(self._segments) > 1:
            oldest = next(iter(self._segments))
            self.forget(oldest)
            oldest.become_inactive()

    def forget(self, segment: Segment) -> None:
        """Account no more for a segment that goes."""
        self.held_bytes -= self._segments.pop(segment, 0)
