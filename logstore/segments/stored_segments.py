"""The segments of a ledger in files, and reading them.

Owns the list of segments and everything that leaves them as they are; what writes, rolls, trims and
syncs them is `file_ledger`'s. Reads of the latest batches and of what is in memory happen on the
event loop, others in a thread.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from logstore.disk.files import FileSystem, StorageFailure
from logstore.segments.ledger import SegmentFacts, SegmentLimits, TimestampOffset
from logstore.segments.names import LOG_SUFFIX
from logstore.segments.replacement import SealedFile
from logstore.segments.segment import Segment
from logstore.segments.segment_reads import ABSENT, Readable, perform, plan_read, scan
from logstore.segments.timestamps import first_in_segments, latest_record
from logstore.sync.durable_end import CommittedLedger
from logstore.sync.group_commit import GroupCommit
from wire.records import BatchHeader

_NOTHING = memoryview(b"")


class ClosedSegments(NamedTuple):
    """The segments of a log that was closed with everything durable."""

    #: Base offset and size in bytes, ascending; never none.
    segments: list[tuple[int, int]]
    end_offset: int
    #: Of the last segment, -1: none has one; and the last offset of the batch with it.
    max_timestamp_ms: int
    offset_of_max_timestamp: int


class StoredSegments(CommittedLedger):
    """The readable half of `FileLedger`. On the event loop's thread, but for what it hands out."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        group_commit: GroupCommit,
        limits: SegmentLimits,
        start_offset: int,
    ) -> None:
        super().__init__(group_commit, start_offset)
        self.limits = limits
        self._files = files
        self._directory = directory
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._sealed_bytes = 0  # of all segments but the last

    @property
    def size_bytes(self) -> int:
        return self._sealed_bytes + self._segments[-1].size if self._segments else 0

    @property
    def segment_base_offsets(self) -> Sequence[int]:
        return tuple(self._bases)

    def segment_facts(self) -> Iterator[SegmentFacts]:
        for segment, end in zip(self._segments, [*self._bases[1:], self._end_offset], strict=False):
            known = segment.max_timestamp_known
            yield SegmentFacts(segment.base_offset, end, segment.size, known)

    async def read_max_timestamp(self, base_offset: int) -> None:
        place = bisect_right(self._bases, base_offset) - 1
        if place < 0 or self._bases[place] != base_offset:
            return
        segment, loop = self._segments[place], asyncio.get_running_loop()
        try:
            # A descriptor of its own: the segment may be trimmed meanwhile.
            file = self._files.open(segment.path(LOG_SUFFIX))
            found = await loop.run_in_executor(None, segment.read_max_timestamp, file)
        except OSError as error:
            raise self.failed(error) from error
        segment.learn_max_timestamp(*found)

    # Reading

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview | None:
        try:
            for segment in self._segments_from(offset):
                exact = segment.recent_range(
                    offset, max_bytes, end_offset, at_least_one=at_least_one
                )
                if exact is not None:
                    start, stop = exact
                    data = segment.file.read_now(stop - start, start) if stop > start else _NOTHING
                    return None if data is None else memoryview(data)
                index = segment.offset_index
                if index is None:
                    return None
                plan = plan_read(
                    index,
                    self._whole_size(segment),
                    offset,
                    max_bytes,
                    end_offset,
                    at_least_one=at_least_one,
                )
                found = perform(plan, segment.file.read_now, self.limits.index_interval_bytes)
                if found is not ABSENT:
                    return found
        except OSError as error:
            raise self.failed(error) from error
        return _NOTHING

    async def read_cold(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview:
        loop = asyncio.get_running_loop()
        for segment in self._segments_from(offset):
            file = segment.file
            file.pin()
            try:
                exact = segment.recent_range(
                    offset, max_bytes, end_offset, at_least_one=at_least_one
                )
                if exact is not None:
                    size = exact[1] - exact[0]
                    return memoryview(await loop.run_in_executor(None, file.read, size, exact[0]))
                if segment.offset_index is None:
                    # Taken over here: an append may have needed them, and gone on, meanwhile.
                    segment.take_indexes(*await loop.run_in_executor(None, segment.read_indexes))
                    assert segment.offset_index is not None
                plan = plan_read(
                    segment.offset_index,
                    self._whole_size(segment),
                    offset,
                    max_bytes,
                    end_offset,
                    at_least_one=at_least_one,
                )
                work = partial(perform, plan, file.read, self.limits.index_interval_bytes)
                found = await loop.run_in_executor(None, work)
            except OSError as error:
                raise self.failed(error) from error
            finally:
                file.unpin()
            if found is not None and found is not ABSENT:
                return found
            if self.is_closed:
                break  # The next one's name may be nobody's any more, or another's.
        return _NOTHING

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        for header, _ in self._scan(from_offset, whole=False):
            yield header

    def batches(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        return self._scan(from_offset, whole=True)

    def batch_at(self, offset: int) -> memoryview | None:
        for _, batch in self._scan(offset, whole=True):
            return batch
        return None

    def _scan(self, offset: int, *, whole: bool) -> Iterator[tuple[BatchHeader, memoryview]]:
        for segment in self._segments_from(offset):
            segment.load_indexes()
            assert segment.offset_index is not None
            start, file = segment.offset_index.lookup(offset), self._readable(segment)
            for _, header, data in scan(file, start, segment.size, whole=whole):
                if header.last_offset >= offset:
                    yield header, data

    def _whole_size(self, segment: Segment) -> int:
        """How many bytes of it are in its file, to be read by anybody."""
        return segment.size

    def _readable(self, segment: Segment) -> Readable:
        """All of it, for reading here."""
        return segment.file

    def _segments_from(self, offset: int) -> Iterator[Segment]:
        """The segment that contains `offset`, then those after it, as they are when asked for."""
        place = max(bisect_right(self._bases, offset) - 1, 0)
        while place < len(self._bases):
            base_offset = self._bases[place]
            yield self._segments[place]
            place = bisect_right(self._bases, base_offset)

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: int) -> TimestampOffset | None:
        found = first_in_segments(list(self._segments), timestamp_ms, self.start_offset)
        return found if found is not None and found.offset < end_offset else None

    def max_timestamp(self) -> TimestampOffset | None:
        found = [segment.max_timestamp() for segment in self._segments if segment.size]
        best = max(found, key=itemgetter(0), default=None)
        if best is None or (batch := self.batch_at(best[1])) is None:
            return None
        return latest_record(batch, BatchHeader.parse(batch))

    # Cleaning

    def read_sealed(self, base_offset: int) -> SealedFile | None:
        for sealed in self._sealed([base_offset]):
            return SealedFile(self._files.open(sealed.path(LOG_SUFFIX)), sealed.size)
        return None

    def _sealed(self, base_offsets: Sequence[int]) -> list[Segment]:
        first = bisect_left(self._bases, base_offsets[0])
        last = first + len(base_offsets)
        are_there = last < len(self._bases) and self._bases[first:last] == list(base_offsets)
        return self._segments[first:last] if are_there and not self.is_closed else []

    def has_segments(self, segments: Sequence[Segment]) -> bool:
        return self._sealed([one.base_offset for one in segments]) == list(segments)

    def exchange(self, old: Sequence[Segment], new: Segment) -> None:
        first = bisect_left(self._bases, new.base_offset)
        self._sealed_bytes += new.size - sum(segment.size for segment in old)
        self._segments[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]

    def failed(self, error: OSError) -> StorageFailure:
        """Nothing of this process may become durable or visible any more."""
        failure = StorageFailure(f"{self._directory}: {error}")
        self._group_commit.fail(failure)
        return failure
