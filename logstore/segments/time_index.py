"""The sparse time index of one segment: Kafka's `.timeindex` file.

    bytes 0-8   timestamp  int64, ms: the largest of the segment so far
          8-12  offset     int32, relative to the base offset: last offset of the batch that has it

Added together with an offset index entry when the largest timestamp has grown, and once more when
the segment is closed. Timestamps strictly ascend. An entry says: all records later than `timestamp`
come after `offset`. Source: org.apache.kafka.storage.internals.log.TimeIndex.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import le
from struct import Struct

from logstore.disk.files import Buffer
from logstore.segments.offset_index import ascend
from wire.records.header import NO_TIMESTAMP

ENTRY_BYTES = 12

_ENTRY = Struct(">qi")


def _columns(entries: Buffer) -> tuple[array[int], array[int]]:
    """Return the timestamps and the offsets of whole entries."""
    numbers = array("i", bytes(entries))
    halves = array("i", bytes(len(numbers) // 3 * 8))
    if sys.byteorder == "little":
        numbers.byteswap()
        halves[0::2], halves[1::2] = numbers[1::3], numbers[0::3]
    else:
        halves[0::2], halves[1::2] = numbers[0::3], numbers[1::3]
    return array("q", halves.tobytes()), numbers[2::3]


class TimeIndex:
    """The entries of one segment, in memory."""

    __slots__ = ("_base_offset", "_offsets", "_timestamps")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")

    @classmethod
    def decode(cls, base_offset: int, data: Buffer) -> TimeIndex:
        """Read a file's entries, up to the first that does not ascend."""
        index = cls(base_offset)
        timestamps, offsets = _columns(data[: len(data) - len(data) % ENTRY_BYTES])
        if (
            offsets
            and timestamps[0] > 0
            and offsets[0] >= 0
            and ascend(timestamps)
            and ascend(offsets, le)
        ):
            index._timestamps, index._offsets = timestamps, offsets
            return index
        last_timestamp, last_offset = NO_TIMESTAMP, 0
        for timestamp, offset in _ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_BYTES]):
            # Zeros that Kafka preallocated end it, and so does the first torn or stale entry.
            if timestamp <= last_timestamp or offset < last_offset or timestamp == offset == 0:
                break
            index._timestamps.append(timestamp)
            index._offsets.append(offset)
            last_timestamp, last_offset = timestamp, offset
        return index

    def encode(self, first_entry: int = 0) -> bytes:
        """Return the entries from `first_entry` on, as they stand in the file."""
        entries = zip(self._timestamps[first_entry:], self._offsets[first_entry:], strict=True)
        return b"".join(_ENTRY.pack(timestamp, offset) for timestamp, offset in entries)

    def __len__(self) -> int:
        return len(self._timestamps)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the timestamp and the (absolute) offset of each entry."""
        for timestamp, offset in zip(self._timestamps, self._offsets, strict=True):
            yield timestamp, self._base_offset + offset

    @property
    def last(self) -> tuple[int, int] | None:
        """The last entry's timestamp and (absolute) offset."""
        if not self._timestamps:
            return None
        return self._timestamps[-1], self._offsets[-1] + self._base_offset

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Add an entry, if the largest timestamp has grown since the last one."""
        if timestamp_ms > (self._timestamps[-1] if self._timestamps else NO_TIMESTAMP):
            self._timestamps.append(timestamp_ms)
            self._offsets.append(offset - self._base_offset)

    def lookup(self, timestamp_ms: int) -> int:
        """Return an offset at or before the first record that is not before `timestamp_ms`."""
        entry = bisect_right(self._timestamps, timestamp_ms - 1) - 1
        return self._base_offset + (self._offsets[entry] if entry >= 0 else 0)

    def largest_until(self, offset: int) -> tuple[int, int] | None:
        """Return the last entry for an offset `<= offset`: its timestamp and (absolute) offset."""
        entry = bisect_right(self._offsets, offset - self._base_offset) - 1
        if entry < 0:
            return None
        return self._timestamps[entry], self._offsets[entry] + self._base_offset

    def truncate(self, end_offset: int) -> None:
        """Drop all entries for offsets `>= end_offset`."""
        keep = bisect_left(self._offsets, end_offset - self._base_offset)
        del self._timestamps[keep:], self._offsets[keep:]
