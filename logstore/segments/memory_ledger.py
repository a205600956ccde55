"""A ledger in this process's memory: `durability=memory`, and the fake of many tests.

The object is its own storage: what was durable is there again when it is opened again, after
`crash` too. Segments exist in name, so that snapshots are taken and trims behave as on disk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from logstore.disk.barriers import Procedure
from logstore.disk.files import Buffer
from logstore.segments.ledger import (
    LedgerFenced,
    Runner,
    SegmentFacts,
    SegmentLimits,
    TimestampOffset,
)
from logstore.segments.names import aborted_name
from logstore.segments.time_index import NO_TIMESTAMP
from logstore.segments.timestamps import first_record_since, latest_record
from logstore.sync.durable_end import CommittedLedger
from logstore.sync.group_commit import GroupCommit, Sync
from wire.records import BatchHeader


class MemoryLedger(CommittedLedger):
    """Batches in a list, found by bisection."""

    def __init__(
        self, group_commit: GroupCommit, *, segment_bytes: int = 2**30, start_offset: int = 0
    ) -> None:
        super().__init__(group_commit, start_offset)
        self._segment_bytes = segment_bytes
        self._batches: list[bytes] = []
        self._base_offsets: list[int] = []
        self._attachments: dict[str, bytes] = {}
        self._segments = [start_offset]
        # Per segment: bytes, and the largest timestamp.
        self._segment_sizes = [0]
        self._max_timestamps = [NO_TIMESTAMP]
        self._size_bytes = 0
        self._epoch = -1

    @property
    def recovery_point(self) -> int:
        return self._durable_end_offset

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def segment_base_offsets(self) -> Sequence[int]:
        return tuple(self._segments)

    def segment_facts(self) -> Iterator[SegmentFacts]:
        ends = [*self._segments[1:], self._end_offset]
        columns = (self._segments, ends, self._segment_sizes, self._max_timestamps)
        return map(SegmentFacts._make, zip(*columns, strict=True))

    async def read_max_timestamp(self, base_offset: int) -> None:
        """All are known."""

    def open(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise LedgerFenced(f"epoch {epoch}, but epoch {self._epoch} has written")
        self._epoch = epoch
        self._will_not_be = None
        self._durable_end_offset = self._end_offset

    def opening(self, epoch: int) -> Procedure[None]:
        self.open(epoch)
        yield from ()

    def opened(self) -> None:
        """Nothing was remembered."""

    def flush(self) -> bool:
        return False

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        may_wait: bool = False,
        is_atomic: bool = False,
    ) -> None:
        assert header.base_offset == self._end_offset, "a batch begins at the log's end"
        size_bytes = len(batch)
        assert header.size_bytes == size_bytes, "one whole batch"
        self._group_commit.touch(self, may_wait=may_wait)
        if self._segment_sizes[-1] + size_bytes > self._segment_bytes:
            self.roll()
        self._batches.append(bytes(batch))
        self._base_offsets.append(header.base_offset)
        self._end_offset = header.next_offset
        self._appended_bytes += size_bytes
        self._size_bytes += size_bytes
        self._note(size_bytes, header.max_timestamp)

    def _note(self, size_bytes: int, max_timestamp: int) -> None:
        self._segment_sizes[-1] += size_bytes
        if max_timestamp > self._max_timestamps[-1]:
            self._max_timestamps[-1] = max_timestamp

    def roll(self) -> None:
        if self._segment_sizes[-1]:
            self.on_roll(self._end_offset)
            self._segments.append(self._end_offset)
            self._segment_sizes.append(0)
            self._max_timestamps.append(NO_TIMESTAMP)

    def begin_sync(self) -> Sync:
        self._begun_end_offset = self._end_offset
        self._begun_bytes = self._appended_bytes
        return Sync(self._end_offset)

    async def settled(self) -> None:
        """There is nowhere else that it could be."""

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview:
        chosen: list[bytes] = []
        size = 0
        for header, batch in self._from(offset):
            if header.next_offset > end_offset:
                break
            size += len(batch)
            if size > max_bytes and (chosen or not at_least_one):
                break
            chosen.append(batch)
        return memoryview(b"".join(chosen) if len(chosen) != 1 else chosen[0])

    async def read_cold(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview:
        return self.read(offset, max_bytes, end_offset, at_least_one=at_least_one)

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        for header, _ in self._from(from_offset):
            yield header

    def batches(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        for header, batch in self._from(from_offset):
            yield header, memoryview(batch)

    def batch_at(self, offset: int) -> memoryview | None:
        for _, batch in self._from(offset):
            return memoryview(batch)
        return None

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: int) -> TimestampOffset | None:
        for header, batch in self._from(self.start_offset):
            found = first_record_since(batch, header, timestamp_ms, self.start_offset)
            if found is not None:
                return found if found.offset < end_offset else None
        return None

    def max_timestamp(self) -> TimestampOffset | None:
        batches = list(self._from(self.start_offset))
        if not batches:
            return None
        header, batch = max(batches, key=lambda entry: entry[0].max_timestamp)
        return latest_record(batch, header)

    def reconfigure(self, limits: SegmentLimits) -> None:
        self._segment_bytes = limits.segment_bytes

    def read_sealed(self, base_offset: int) -> _SealedBatches | None:
        if not self.is_sealed([base_offset]):
            return None
        end_offset = self._segments[self._segments.index(base_offset) + 1]
        first, end = (bisect_left(self._base_offsets, at) for at in (base_offset, end_offset))
        return _SealedBatches(self._batches[first:end])

    def replacement(self, base_offsets: Sequence[int]) -> _MemoryReplacement | None:
        return _MemoryReplacement(self, base_offsets) if self.is_sealed(base_offsets) else None

    def is_sealed(self, base_offsets: Sequence[int]) -> bool:
        """Whether these segments are there, next to one another, and none is active."""
        first = bisect_left(self._segments, base_offsets[0])
        last = first + len(base_offsets)
        are_there = last < len(self._segments) and not self.is_closed
        return are_there and self._segments[first:last] == list(base_offsets)

    def exchange(self, base_offsets: Sequence[int], batches: Sequence[bytes]) -> None:
        """Have one segment of these batches in the place of others, which are there."""
        first = self._segments.index(base_offsets[0])
        last = first + len(base_offsets)
        start, end = (bisect_left(self._base_offsets, self._segments[at]) for at in (first, last))
        headers = [BatchHeader.parse(batch) for batch in batches]
        self._size_bytes += sum(map(len, batches)) - sum(map(len, self._batches[start:end]))
        self._batches[start:end] = batches
        self._base_offsets[start:end] = [header.base_offset for header in headers]
        del self._segments[first + 1 : last]
        self._segment_sizes[first:last] = [sum(map(len, batches))]
        self._max_timestamps[first:last] = [
            max([header.max_timestamp for header in headers], default=NO_TIMESTAMP)
        ]

    def trim(self, start_offset: int) -> None:
        if start_offset <= self.start_offset:
            return
        assert start_offset <= self._durable_end_offset
        self.start_offset = start_offset
        while len(self._segments) > 1 and self._segments[1] <= start_offset:
            del self._segments[0], self._segment_sizes[0], self._max_timestamps[0]
        keep = bisect_right(self._base_offsets, self._segments[0] - 1)
        self._size_bytes -= sum(map(len, self._batches[:keep]))
        del self._batches[:keep], self._base_offsets[:keep]

    def write_attachment(self, name: str, data: Buffer, *, sync: bool = True) -> None:
        self._attachments[name] = bytes(data)

    def replacing_attachment(self, name: str, data: Buffer) -> Procedure[None]:
        self.write_attachment(name, data)
        yield from ()

    def append_attachment(self, name: str, data: Buffer) -> None:
        self._attachments[name] = self._attachments.get(name, b"") + bytes(data)

    def read_attachment(self, name: str) -> bytes | None:
        return self._attachments.get(name)

    def list_attachments(self) -> list[str]:
        return sorted(self._attachments)

    def delete_attachment(self, name: str) -> None:
        self._attachments.pop(name, None)

    def securing(self) -> Procedure[None]:
        self._durable_end_offset = self._end_offset
        yield from ()

    def close(self, *, clean: bool) -> None:
        if clean:
            self._durable_end_offset = self._end_offset
        self._stop_committing()

    def crash(self) -> None:
        """Lose every batch that is not durable, as power loss does; `open` again afterwards."""
        self._stop_committing()
        while self._base_offsets and self._base_offsets[-1] >= self._durable_end_offset:
            del self._base_offsets[-1]
            self._size_bytes -= len(self._batches.pop())
        self._end_offset = self._durable_end_offset
        while len(self._segments) > 1 and self._segments[-1] >= self._end_offset:
            del self._segments[-1], self._segment_sizes[-1], self._max_timestamps[-1]
        self._segment_sizes[-1], self._max_timestamps[-1] = 0, NO_TIMESTAMP
        for batch in self._batches[bisect_right(self._base_offsets, self._segments[-1] - 1) :]:
            self._note(len(batch), BatchHeader.parse(batch).max_timestamp)

    def _from(self, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Batches from the one containing `offset` on, or from the next where there is none."""
        index = max(bisect_right(self._base_offsets, offset) - 1, 0)
        while index < len(self._batches):
            batch = self._batches[index]
            header = BatchHeader.parse(batch)
            if header.next_offset > offset:
                yield header, batch
            index += 1


class _SealedBatches:
    """The batches of a segment, as they were when it was opened."""

    def __init__(self, batches: list[bytes]) -> None:
        self._batches = batches

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        for batch in self._batches:
            yield BatchHeader.parse(batch), memoryview(batch)

    def close(self) -> None:
        """There is nothing to release."""


class _MemoryReplacement:
    """Batches that are to take the place of segments."""

    def __init__(self, ledger: MemoryLedger, base_offsets: Sequence[int]) -> None:
        self._ledger = ledger
        self._base_offsets = base_offsets
        self._batches: list[bytes] = []

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        self._batches.append(bytes(batch))

    def seal(self, aborted: bytes) -> None:
        name = aborted_name(self._base_offsets[0])
        self._aborted = name, aborted

    async def swap(self, run: Runner, on_swapped: Callable[[], None]) -> bool:
        if not self._ledger.is_sealed(self._base_offsets):
            return False
        for base_offset in self._base_offsets:
            self._ledger.delete_attachment(aborted_name(base_offset))
        self._ledger.write_attachment(*self._aborted)
        self._ledger.exchange(self._base_offsets, self._batches)
        on_swapped()
        return True

    def abandon(self) -> None:
        self._batches.clear()
