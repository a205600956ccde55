"""The aborted transactions of one partition, and the file that keeps them: `.txnindex`.

Owns which aborted transactions a read_committed fetch must be told of, at a cost that follows the
overlap and not the history. Entries are in the order of their markers. On disk each segment has
the entries whose markers lie in it. In memory they are one index, which loses its head when
segments are deleted.

    bytes 0-2   version            int16, 0
          2-10  producer id        int64
         10-18  first offset       int64, inclusive
         18-26  last offset        int64, the marker's
         26-34  last stable offset int64, right after the abort

Source: KIP-98, Kafka's TransactionIndex and AbortedTxn.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from wire.records.header import ABOVE_OFFSETS

_ENTRY = Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
_VERSION = 0
#: How many entries share one lower bound of their first offsets, and are skipped together.
_BLOCK = 128


class AbortedTransaction(NamedTuple):
    """What Fetch tells a read_committed reader: skip this producer's records from `first_offset` to
    its marker."""

    producer_id: int
    first_offset: int


class AbortedEntry(NamedTuple):
    """One aborted transaction; `last_offset` is its marker's offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """Return the entry as it stands in a `.txnindex`."""
        return _ENTRY.pack(_VERSION, *self)


class CorruptIndex(ValueError):
    """A `.txnindex` is torn or lacks entries. It is rebuilt from the log."""


def decode_entries(data: bytes) -> tuple[list[AbortedEntry], bool]:
    """Return the entries of a `.txnindex` up to where it is damaged, and whether it is whole.

    A tail that was never synced may be torn, zero or missing. Marker offsets strictly ascend.
    """
    entries: list[AbortedEntry] = []
    last_offset = -1
    whole = len(data) - len(data) % ENTRY_SIZE
    for version, *fields in _ENTRY.iter_unpack(data[:whole]):
        entry = AbortedEntry._make(fields)
        if version != _VERSION or entry.last_offset <= last_offset:
            return entries, False
        if not 0 <= entry.first_offset < entry.last_offset:
            return entries, False
        last_offset = entry.last_offset
        entries.append(entry)
    return entries, whole == len(data)


class AbortedIndex:
    """The aborted transactions of a partition, 32 bytes each."""

    __slots__ = ("_block_first_offsets", "_first", "_last", "_producer_ids", "_stable")

    def __init__(self, entries: Iterable[AbortedEntry] = ()) -> None:
        self._producer_ids = array("q")
        self._first = array("q")
        self._last = array("q")
        self._stable = array("q")
        #: The smallest first offset in each block of entries.
        self._block_first_offsets = array("q")
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[AbortedEntry]:
        return map(AbortedEntry, self._producer_ids, self._first, self._last, self._stable)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AbortedIndex):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable, so no key

    def append(self, entry: AbortedEntry) -> None:
        """Add the transaction that was aborted last: its marker lies after all others."""
        assert not self._last or entry.last_offset > self._last[-1], entry
        if len(self._last) % _BLOCK == 0:
            self._block_first_offsets.append(entry.first_offset)
        elif entry.first_offset < self._block_first_offsets[-1]:
            self._block_first_offsets[-1] = entry.first_offset
        self._producer_ids.append(entry.producer_id)
        self._first.append(entry.first_offset)
        self._last.append(entry.last_offset)
        self._stable.append(entry.last_stable_offset)

    @property
    def last_offset(self) -> int:
        """The offset of the last abort's marker, -1 if there is none."""
        return self._last[-1] if self._last else -1

    def any_from(self, offset: int) -> bool:
        """Whether any marker of an abort lies at `offset` or after."""
        return bool(self._last) and self._last[-1] >= offset

    def end_of_markers(self, offset: int, count: int) -> int:
        """Return the offset behind the `count`-th marker at `offset` or after.

        ABOVE_OFFSETS if there are not so many.
        """
        at = bisect_left(self._last, offset) + count - 1
        return self._last[at] + 1 if at < len(self._last) else ABOVE_OFFSETS

    def overlapping(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have anything in [first_offset, end_offset), in the
        order of their markers.

        Cost: the overlap, one step per 128 transactions that only lie between, and a bisection.
        """
        found: list[AbortedTransaction] = []
        count = len(self._last)
        index = bisect_left(self._last, first_offset)
        while index < count:
            block_end = min(count, (index // _BLOCK + 1) * _BLOCK)
            if self._block_first_offsets[index // _BLOCK] < end_offset:
                firsts = self._first[index:block_end]
                found += [
                    AbortedTransaction(self._producer_ids[index + at], first)
                    for at, first in enumerate(firsts)
                    if first < end_offset
                ]
            # A later abort ends a transaction that was open at that stable offset, or began later.
            if self._stable[block_end - 1] >= end_offset:
                break
            index = block_end
        return found

    def entries(self, first_offset: int, end_offset: int) -> Iterator[AbortedEntry]:
        """Yield the entries whose markers lie in [first_offset, end_offset): one segment's file."""
        start, end = bisect_left(self._last, first_offset), bisect_left(self._last, end_offset)
        for at in range(start, end):
            yield AbortedEntry(
                self._producer_ids[at], self._first[at], self._last[at], self._stable[at]
            )

    def replace(self, first_offset: int, end_offset: int, entries: list[AbortedEntry]) -> None:
        """Keep only these entries, all of them known, for markers in [first_offset, end_offset)."""
        start, end = bisect_left(self._last, first_offset), bisect_left(self._last, end_offset)
        if end - start == len(entries):
            return
        assert len(entries) < end - start, "compaction adds no abort"
        for number, column in enumerate(self._columns()):
            column[start:end] = array("q", [entry[number] for entry in entries])
        self._measure_blocks()

    def copied(self) -> AbortedIndex:
        """Return a copy of it as it is now, for another thread to read."""
        copy = AbortedIndex()
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name)[:])
        return copy

    def prune(self, start_offset: int) -> None:
        """Forget the transactions whose markers lie below `start_offset`."""
        if self._last and self._last[0] < start_offset:
            self._forget(slice(bisect_left(self._last, start_offset)))

    def truncate(self, end_offset: int) -> None:
        """Forget the transactions whose markers lie at `end_offset` or after."""
        if self._last and self._last[-1] >= end_offset:
            self._forget(slice(bisect_left(self._last, end_offset), None))

    def _columns(self) -> tuple[array[int], ...]:
        return self._producer_ids, self._first, self._last, self._stable

    def _forget(self, entries: slice) -> None:
        for column in self._columns():
            del column[entries]
        self._measure_blocks()

    def _measure_blocks(self) -> None:
        first = self._first
        self._block_first_offsets = array(
            "q", [min(first[at : at + _BLOCK]) for at in range(0, len(first), _BLOCK)]
        )
