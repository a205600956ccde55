"""A ledger in this process's memory: for `durability=memory`, and as a fake in many tests.

The object is its own storage: opened again after a close, it has all its batches. Segments are
counted but have no files, so that snapshots are taken, and trims behave, as on a disk.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial

from logstore.disk.barriers import Procedure, at_once
from logstore.disk.files import Buffer
from logstore.disk.pieces import Piece, whole
from logstore.segments.ledger import (
    LedgerFenced,
    Runner,
    SegmentFacts,
    SegmentLimits,
    TimestampOffset,
)
from logstore.segments.names import aborted_name
from logstore.segments.searching import pool_for
from logstore.segments.segment_copy import SealedBatches
from logstore.segments.segment_reads import joined
from logstore.segments.timestamps import first_record_since, latest_record, may_hold_since
from logstore.sync.group_commit import CommittedLedger, GroupCommit, Sync, Waiter
from wire.records import BatchHeader
from wire.records.header import NO_TIMESTAMP

#: Batches that a search passes over in one turn of the event loop: a millisecond.
_BATCHES_OF_A_TURN = 1024


class MemoryLedger(CommittedLedger):
    """Batches in a list, attachments in a dictionary."""

    #: A trim deletes segments in its own step.
    trimmed = ()

    def __init__(
        self, group_commit: GroupCommit, *, segment_bytes: int = 2**30, start_offset: int = 0
    ) -> None:
        super().__init__(group_commit, start_offset)
        self._group_commit = group_commit
        self.attachments = MemoryAttachments()
        self.segments = MemorySegments(start_offset, self.attachments)
        self.batches = self.segments
        self._segment_bytes = segment_bytes
        self._epoch = -1

    @property
    def recovery_point(self) -> int:
        return self.durable_end_offset

    def opening(self, epoch: int) -> Procedure[None]:
        if epoch < self._epoch:
            raise LedgerFenced(f"epoch {epoch}, but epoch {self._epoch} has written")
        self._epoch = epoch
        # The same object may be opened again after a close, as a restart opens a directory again.
        self._end = None
        self.segments.is_closed = False
        self.durable_end_offset = self.end_offset
        yield from ()

    def opened(self) -> None:
        """Release nothing: opening has kept nothing for later."""

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        may_wait: bool = False,
        is_atomic: bool = False,
        is_refusable: bool = False,
    ) -> None:
        assert header.base_offset == self.end_offset, "a batch begins at the log's end"
        size_bytes = len(batch)
        assert header.size_bytes == size_bytes, "an append is one whole batch"
        self._group_commit.touch(self, may_wait=may_wait)
        if self.segments.active_bytes + size_bytes > self._segment_bytes:
            self.roll()
        # A copy: a client's buffer is used again once its request is answered.
        self.segments.append(bytes(batch), header)
        self.end_offset = header.next_offset

    def flush(self) -> bool:
        return False

    def begin_sync(self) -> Sync:
        self._begun_end_offset = self.end_offset
        return Sync(self.end_offset)

    def roll(self) -> None:
        if self.segments.active_bytes:
            self.on_roll(self.end_offset)
            self.segments.roll(self.end_offset)

    def trim(self, start_offset: int) -> None:
        if start_offset > self.start_offset:
            assert start_offset <= self.durable_end_offset, "only durable batches are trimmed"
            self.start_offset = start_offset
            self.segments.trim(start_offset)

    def reconfigure(self, limits: SegmentLimits) -> None:
        self._segment_bytes = limits.segment_bytes

    def securing(self) -> Procedure[None]:
        # Memory loses nothing while the object lives, so there is no sync to wait for.
        self.durable_end_offset = self.end_offset
        yield from ()

    def close(self) -> None:
        self.segments.is_closed = True
        self._stop_committing()


class MemorySegments:
    """`Batches` and `Segments` of a `MemoryLedger`. Finds batches by bisection."""

    def __init__(self, base_offset: int, attachments: MemoryAttachments) -> None:
        self.is_closed = False
        self.size_bytes = 0
        self._attachments = attachments
        self._batches: list[bytes] = []
        self._batch_offsets: list[int] = []
        # Per segment: base offset, bytes, largest timestamp.
        self._bases = [base_offset]
        self._sizes = [0]
        self._max_timestamps = [NO_TIMESTAMP]

    @property
    def active_bytes(self) -> int:
        """Bytes of the active segment."""
        return self._sizes[-1]

    @property
    def base_offsets(self) -> Sequence[int]:
        return tuple(self._bases)

    def facts(self) -> Iterator[SegmentFacts]:
        last = self._batches[-1] if self._batches else None
        end_offset = self._bases[-1] if last is None else BatchHeader.parse(last).next_offset
        ends = [*self._bases[1:], max(end_offset, self._bases[-1])]
        columns = (self._bases, ends, self._sizes, self._max_timestamps)
        return map(SegmentFacts._make, zip(*columns, strict=True))

    async def read_max_timestamp(self, base_offset: int) -> None:
        """Do nothing: `facts` has every segment's largest timestamp already."""

    def append(self, batch: bytes, header: BatchHeader) -> None:
        """Add a batch to the active segment."""
        self._batches.append(batch)
        self._batch_offsets.append(header.base_offset)
        self.size_bytes += len(batch)
        self._sizes[-1] += len(batch)
        self._max_timestamps[-1] = max(self._max_timestamps[-1], header.max_timestamp)

    def roll(self, end_offset: int) -> None:
        """Begin a new segment at the log's end."""
        self._bases.append(end_offset)
        self._sizes.append(0)
        self._max_timestamps.append(NO_TIMESTAMP)

    def trim(self, start_offset: int) -> None:
        """Delete the segments that lie wholly below `start_offset`, never the active one."""
        while len(self._bases) > 1 and self._bases[1] <= start_offset:
            del self._bases[0], self._sizes[0], self._max_timestamps[0]
        keep = bisect_left(self._batch_offsets, self._bases[0])
        self.size_bytes -= sum(map(len, self._batches[:keep]))
        del self._batches[:keep], self._batch_offsets[:keep]

    # Reading

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview:
        batches = self._since(offset)
        return joined(batches, max_bytes, end_offset, at_least_one=at_least_one)

    async def read_cold(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview:
        return self.read(offset, max_bytes, end_offset, at_least_one=at_least_one)

    def bytes_between(self, offset: int, end_offset: int) -> int:
        if offset >= end_offset:
            return 0
        first = max(bisect_right(self._batch_offsets, offset) - 1, 0)
        return sum(map(len, self._batches[first : bisect_left(self._batch_offsets, end_offset)]))

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        for header, _ in self._since(from_offset):
            yield header

    def iterate(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        for header, batch in self._since(from_offset):
            yield header, memoryview(batch)

    async def offset_for_timestamp(
        self, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        async for header, batch in self._in_turns(start_offset):
            if not may_hold_since(header, timestamp_ms, start_offset):
                continue
            look = partial(first_record_since, batch, header, timestamp_ms, start_offset)
            found = await pool_for(header).run(look)
            if found is not None:
                return found if found.offset < end_offset else None
        return None

    async def max_timestamp(self, end_offset: int) -> TimestampOffset | None:
        latest: tuple[BatchHeader, bytes] | None = None
        async for header, batch in self._in_turns(self._bases[0]):
            if header.next_offset <= end_offset and (
                latest is None or header.max_timestamp > latest[0].max_timestamp
            ):
                latest = header, batch
        if latest is None:
            return None
        header, batch = latest
        return await pool_for(header).run(partial(latest_record, batch, header))

    async def _in_turns(self, offset: int) -> AsyncIterator[tuple[BatchHeader, bytes]]:
        """Yield as `_since` does what is there now, letting others go on in between."""
        batches = self._batches[max(bisect_right(self._batch_offsets, offset) - 1, 0) :]
        for number, batch in enumerate(batches, 1):
            header = BatchHeader.parse(batch)
            if header.next_offset > offset:
                yield header, batch
            if number % _BATCHES_OF_A_TURN == 0:
                await asyncio.sleep(0)

    def _since(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield batches from the one containing `offset` on, or from the next one after a gap."""
        index = max(bisect_right(self._batch_offsets, offset) - 1, 0)
        while index < len(self._batches):
            batch = self._batches[index]
            header = BatchHeader.parse(batch)
            if header.next_offset > offset:
                yield header, batch
            index += 1

    # Cleaning

    async def read_sealed(self, base_offset: int) -> SealedBatches | None:
        if not self.are_sealed([base_offset]):
            return None
        end_offset = self._bases[self._bases.index(base_offset) + 1]
        first, end = (bisect_left(self._batch_offsets, at) for at in (base_offset, end_offset))
        batches = [(BatchHeader.parse(batch), batch) for batch in self._batches[first:end]]
        return SealedBatches(batches, sum(map(len, self._batches[first:end])))

    def replacement(self, base_offsets: Sequence[int]) -> _MemoryReplacement | None:
        if not self.are_sealed(base_offsets):
            return None
        return _MemoryReplacement(self, self._attachments, base_offsets)

    def are_sealed(self, base_offsets: Sequence[int]) -> bool:
        """Return whether these segments exist, follow one another, and none of them is active."""
        first = bisect_left(self._bases, base_offsets[0])
        last = first + len(base_offsets)
        are_there = last < len(self._bases) and not self.is_closed
        return are_there and self._bases[first:last] == list(base_offsets)

    def exchange(self, base_offsets: Sequence[int], batches: Sequence[bytes]) -> None:
        """Replace these segments, which must exist, by one segment with these batches."""
        first = self._bases.index(base_offsets[0])
        last = first + len(base_offsets)
        start, end = (bisect_left(self._batch_offsets, self._bases[at]) for at in (first, last))
        headers = [BatchHeader.parse(batch) for batch in batches]
        self.size_bytes += sum(map(len, batches)) - sum(map(len, self._batches[start:end]))
        self._batches[start:end] = batches
        self._batch_offsets[start:end] = [header.base_offset for header in headers]
        del self._bases[first + 1 : last]
        self._sizes[first:last] = [sum(map(len, batches))]
        self._max_timestamps[first:last] = [
            max([header.max_timestamp for header in headers], default=NO_TIMESTAMP)
        ]


class MemoryAttachments:
    """`Attachments` of a `MemoryLedger`."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    def write(self, name: str, data: Buffer, *, sync: bool = True) -> None:
        self._data[name] = bytes(data)

    def replacing(
        self, name: str, pieces: Iterable[Piece], *, sync: bool = True
    ) -> Procedure[None]:
        self.write(name, whole(pieces))
        yield from ()

    def carry_out(
        self, procedure: Procedure[None], is_wanted: Callable[[], bool], done: Waiter
    ) -> None:
        at_once(procedure)
        done(None)

    def append(self, name: str, data: Buffer) -> None:
        self._data[name] = self._data.get(name, b"") + bytes(data)

    def read(self, name: str) -> bytes | None:
        return self._data.get(name)

    def names(self) -> list[str]:
        return sorted(self._data)

    def delete(self, name: str) -> None:
        self._data.pop(name, None)

    def discard(self, names: Iterable[str]) -> None:
        for name in names:
            self.delete(name)


class _MemoryReplacement:
    """One segment of batches that takes the place of several."""

    def __init__(
        self, segments: MemorySegments, attachments: MemoryAttachments, base_offsets: Sequence[int]
    ) -> None:
        self._segments = segments
        self._attachments = attachments
        self._base_offsets = base_offsets
        self._batches: list[bytes] = []
        self._aborted = b""

    @property
    def shared(self) -> None:
        return None

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        self._batches.append(bytes(batch))

    def seal(self, aborted: bytes) -> None:
        self._aborted = aborted

    async def swap(self, run: Runner, on_swapped: Callable[[], None]) -> bool:
        if not self._segments.are_sealed(self._base_offsets):
            return False
        for base_offset in self._base_offsets:
            self._attachments.delete(aborted_name(base_offset))
        self._attachments.write(aborted_name(self._base_offsets[0]), self._aborted)
        self._segments.exchange(self._base_offsets, self._batches)
        on_swapped()
        return True

    def abandon(self) -> None:
        self._batches.clear()
