"""The sparse offset index of one segment: Kafka's `.index` file.

    bytes 0-4  offset    int32, relative to the segment's base offset: the batch's *last* offset
          4-8  position  int32, where that batch begins in the `.log` file

One entry for about every `index.interval.bytes` of log, never one for the first batch, both columns
strictly ascending. Kafka preallocates the file with zeros and trims it when the segment is closed.
What follows the last ascending entry is ignored here, so that both kinds can be read.

Entries help to find batches. The batches themselves are the truth. In memory there are two arrays.
Source: org.apache.kafka.storage.internals.log.OffsetIndex.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import lt

from logstore.disk.files import Buffer

ENTRY_BYTES = 8
#: No offset of a segment lies further above its base offset: entries of both indexes have an int32.
RELATIVE_OFFSET_MAX = 2**31 - 1


#: How many entries are compared in one call, during which no other thread runs.
_COMPARED = 1 << 14


def ascend(column: array[int], follows: Callable[[int, int], bool] = lt) -> bool:
    """Whether `follows` holds for each number and the next one. Python loops over no numbers."""
    return all(
        all(map(follows, column[at : at + _COMPARED], column[at + 1 : at + _COMPARED + 1]))
        for at in range(0, len(column), _COMPARED)
    )


class OffsetIndex:
    """The entries of one segment, in memory."""

    __slots__ = ("_base_offset", "_offsets", "_positions")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._offsets = array("i")
        self._positions = array("i")

    @classmethod
    def decode(cls, base_offset: int, data: Buffer, log_size: int) -> OffsetIndex:
        """Read a file's entries, up to the first that does not ascend or lies past the log."""
        index = cls(base_offset)
        numbers = array("i", bytes(data[: len(data) - len(data) % ENTRY_BYTES]))
        if sys.byteorder == "little":
            numbers.byteswap()
        offsets, positions = numbers[0::2], numbers[1::2]
        if not offsets or (
            offsets[0] > 0
            and positions[0] > 0
            and positions[-1] < log_size
            and ascend(offsets)
            and ascend(positions)
        ):
            index._offsets, index._positions = offsets, positions
            return index
        count, last_offset, last_position = 0, 0, 0
        for offset, position in zip(offsets, positions, strict=True):
            # Zeros that Kafka preallocated end it, and so does the first torn or stale entry.
            if offset <= last_offset or not last_position < position < log_size:
                break
            count, last_offset, last_position = count + 1, offset, position
        index._offsets, index._positions = offsets[:count], positions[:count]
        return index

    def encode(self, first_entry: int = 0) -> bytes:
        """Return the entries from `first_entry` on, as they stand in the file."""
        offsets = self._offsets[first_entry:]
        numbers = array("i", bytes(len(offsets) * ENTRY_BYTES))
        numbers[0::2] = offsets
        numbers[1::2] = self._positions[first_entry:]
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers.tobytes()

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the (absolute) last offset and the position of each batch that has an entry."""
        for offset, position in zip(self._offsets, self._positions, strict=True):
            yield self._base_offset + offset, position

    @property
    def positions(self) -> Sequence[int]:
        """Where batches with an entry begin, ascending."""
        return self._positions

    @property
    def last_offset(self) -> int:
        """The last offset of the last batch that has an entry; there is one."""
        return self._base_offset + self._offsets[-1]

    def append(self, last_offset: int, position: int) -> None:
        """Add the batch at `position`, whose last offset is `last_offset`."""
        # A lookup bisects both columns, so one entry out of order would hide others.
        assert not self._positions or position > self._positions[-1], "entries ascend"
        self._offsets.append(last_offset - self._base_offset)
        self._positions.append(position)

    def lookup(self, offset: int) -> int:
        """Return the position of a batch at or shortly before the one that contains `offset`."""
        entry = bisect_right(self._offsets, offset - self._base_offset) - 1
        return self._positions[entry] if entry >= 0 else 0

    def boundary(self, position_max: int, end_offset: int) -> int:
        """Return the last known batch position `<= position_max` before which all offsets are lower
        than `end_offset`; 0 if none is known."""
        entry = min(
            bisect_right(self._positions, position_max),
            bisect_left(self._offsets, end_offset - self._base_offset),
        )
        return self._positions[entry - 1] if entry else 0

    def truncate(self, end_offset: int) -> None:
        """Drop all entries for offsets `>= end_offset`."""
        keep = bisect_left(self._offsets, end_offset - self._base_offset)
        del self._offsets[keep:], self._positions[keep:]
