"""The segments of a log in the store: bounds, sizes, largest timestamps. All are in memory.

A segment is a range of offsets here, not a file: the unit of retention and compaction. A log's
active segment begins where its last sealed one ends, so no row has to say so.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from logstore.remote.commit_store import LogKey, StoredSegment
from logstore.segments.ledger import SegmentFacts, SegmentLimits
from logstore.segments.offset_index import RELATIVE_OFFSET_MAX
from wire.records import BatchHeader
from wire.records.header import NO_TIMESTAMP


class SegmentList:
    """Sealed segments, and the active one behind them."""

    def __init__(self, key: LogKey) -> None:
        self._key = key
        #: A new list after each change: a search goes on in the one that it began with.
        self._sealed: list[StoredSegment] = []
        # Of the active segment:
        self._base_offset = 0
        self._end_offset = 0
        self.active_bytes = 0
        self._max_timestamp = NO_TIMESTAMP
        self._first_timestamp: int | None = None
        # Of all:
        #: The bytes before each of the sealed segments, and behind them all, from some number on: a
        #: roll and a trim count nothing anew, since there may be a hundred thousand.
        self._bytes_before = [0]
        #: The base offsets of all segments, ascending. A new tuple after each change.
        self.base_offsets: tuple[int, ...] = (0,)

    def begin(self, sealed: Iterable[StoredSegment], active_base_offset: int) -> None:
        """Begin with what was loaded; `add` follows for each batch of the active segment."""
        self._sealed = list(sealed)
        self._base_offset = self._end_offset = active_base_offset
        self._count()

    def _count(self) -> None:
        self._bytes_before = [*accumulate((one.size_bytes for one in self._sealed), initial=0)]
        self.base_offsets = (*(one.base_offset for one in self._sealed), self._base_offset)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self._bytes_before[-1] - self._bytes_before[0] + self.active_bytes

    def add(self, header: BatchHeader) -> None:
        """Account for a batch at the log's end."""
        self.active_bytes += header.size_bytes
        timestamp = header.max_timestamp
        if self._first_timestamp is None:
            self._first_timestamp = timestamp
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        self._end_offset = header.next_offset

    def is_full_for(self, header: BatchHeader, limits: SegmentLimits) -> bool:
        """Whether this batch has to begin a new segment. An empty segment takes any batch.

        Age is by the records' own time, as in Kafka: since the first batch's max timestamp.
        """
        first_timestamp = self._first_timestamp
        if first_timestamp is None:
            return False
        return (
            self.active_bytes + header.size_bytes > limits.segment_bytes
            or (first_timestamp >= 0 and header.max_timestamp - first_timestamp > limits.segment_ms)
            or header.last_offset - self._base_offset > RELATIVE_OFFSET_MAX
        )

    def seal(self) -> StoredSegment:
        """End the active segment, which is not empty, and return it. A new one begins."""
        sealed = StoredSegment(
            self._key,
            self._base_offset,
            self._end_offset,
            self.active_bytes,
            self._max_timestamp,
        )
        self._sealed = [*self._sealed, sealed]
        self._base_offset = self._end_offset
        self._bytes_before = [*self._bytes_before, self._bytes_before[-1] + self.active_bytes]
        self.base_offsets = (*self.base_offsets, self._base_offset)
        self.active_bytes, self._max_timestamp, self._first_timestamp = 0, NO_TIMESTAMP, None
        return sealed

    def trim(self, start_offset: int) -> int:
        """Forget the sealed segments that lie wholly below; return where the first kept begins."""
        gone = self._ended_at(start_offset)
        self._sealed = self._sealed[gone:]
        self._bytes_before = self._bytes_before[gone:]
        self.base_offsets = self.base_offsets[gone:]
        return self.base_offsets[0]

    def replace(self, segment: StoredSegment) -> None:
        """Put `segment` in the place of the sealed ones that it covers."""
        first = bisect_left(self.base_offsets, segment.base_offset)
        end = bisect_left(self.base_offsets, segment.end_offset)
        self._sealed = [*self._sealed[:first], segment, *self._sealed[end:]]
        self._count()

    def sealed_at(self, base_offsets: Sequence[int]) -> list[StoredSegment]:
        """Return the sealed segments that begin at these offsets; none unless all are there, side
        by side."""
        first = bisect_left(self.base_offsets, base_offsets[0])
        found = self._sealed[first : first + len(base_offsets)]
        return found if [one.base_offset for one in found] == list(base_offsets) else []

    def facts(self) -> Iterator[SegmentFacts]:
        """Yield what `Segments.facts` does, as it is when the first is asked for."""
        active = SegmentFacts(
            self._base_offset, self._end_offset, self.active_bytes, self._max_timestamp
        )
        for _, base_offset, end_offset, size_bytes, max_timestamp_ms in self._sealed:
            yield SegmentFacts(base_offset, end_offset, size_bytes, max_timestamp_ms)
        yield active

    def bytes_since(self, offset: int) -> int:
        """Return the bytes of all segments from the one that holds `offset` on."""
        first = max(bisect_right(self.base_offsets, offset) - 1, 0)
        return self._bytes_before[-1] - self._bytes_before[first] + self.active_bytes

    def bytes_touching(self, offset: int, end_offset: int) -> int:
        """Return the bytes of all segments that touch [offset, end_offset)."""
        first = self._ended_at(offset)
        end = bisect_left(self.base_offsets, end_offset, 0, len(self._sealed))
        sealed_bytes = self._bytes_before[end] - self._bytes_before[first] if first < end else 0
        is_active_touched = self._base_offset < end_offset and self._end_offset > offset
        return sealed_bytes + (self.active_bytes if is_active_touched else 0)

    def covered_by(self, segment: StoredSegment) -> list[int]:
        """Return the base offsets of the sealed segments in the bounds of this one."""
        first = bisect_left(self.base_offsets, segment.base_offset)
        end = bisect_left(self.base_offsets, segment.end_offset, 0, len(self._sealed))
        return [*self.base_offsets[first:end]]

    def _ended_at(self, offset: int) -> int:
        """Return how many sealed segments end at `offset` or below."""
        return bisect_right(self._sealed, offset, key=lambda one: one.end_offset)
