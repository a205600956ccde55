"""The segments of a ledger in files: reading them, trimming them, exchanging cleaned ones.

Owns the list of segments. What appends to the last one and syncs it is `file_ledger`. Reads of the
latest batches and of what is in memory happen on the event loop, others in a thread.
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice

from logstore.disk.file_range import FileRange
from logstore.disk.files import FileSystem, StorageFailure
from logstore.disk.pools import COLD_READS, HOUSEKEEPING
from logstore.segments.closed_segments import ClosedSegments
from logstore.segments.cold_indexes import ColdIndexes
from logstore.segments.ledger import (
    GONE,
    UNREADABLE,
    DamagedLog,
    SegmentFacts,
    SegmentLimits,
    TimestampOffset,
    Unreadable,
)
from logstore.segments.names import DELETED, LEFTOVER_SUFFIXES, LOG_SUFFIX, SEGMENT_SUFFIXES
from logstore.segments.offset_index import OffsetIndex
from logstore.segments.replacement import FileReplacement
from logstore.segments.searching import first_in_file, pool_for
from logstore.segments.segment import Segment
from logstore.segments.segment_copy import SealedFile
from logstore.segments.segment_reads import (
    ABSENT,
    DamagedBatch,
    Readable,
    ReadPlan,
    perform,
    plan_read,
    read_exactly,
    read_planned,
    scan,
    scan_checked,
    whole,
)
from logstore.segments.time_index import TimeIndex
from logstore.segments.timestamps import latest_in_file, latest_record
from logstore.segments.unsynced import UnsyncedBytes
from logstore.sync.group_commit import GroupCommit
from wire.records.header import NO_TIMESTAMP, BatchHeader

_NOTHING = memoryview(b"")
#: The indexes of a shorter last segment are read when they are needed: in a few milliseconds.
_LATE_INDEX_BYTES = 16 * 1024 * 1024


class StoredSegments:
    """`Batches` and `Segments` of a `FileLedger`. On the event loop's thread, except for what it
    hands out."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        group_commit: GroupCommit,
        limits: SegmentLimits,
        unsynced: UnsyncedBytes,
        cold_indexes: ColdIndexes,
    ) -> None:
        self.limits = limits
        #: The last segment; None: there is none yet.
        self.active: Segment | None = None
        #: Deletes files that segments have left, later; None: at once.
        self.discard_later: Callable[[Sequence[str]], None] | None = None
        #: Is told of each read that failed with `Unreadable`. On the event loop.
        self.on_unreadable: Callable[[OSError], None] | None = None
        self._files = files
        self._directory = directory
        self._group_commit = group_commit
        self._unsynced = unsynced
        self._cold_indexes = cold_indexes
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._sealed_bytes = 0  # of all segments but the last
        self._is_closed = False
        self._may_have_leftovers = False

    def begin(self, segments: list[Segment]) -> None:
        """Begin with what recovery has found."""
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._sealed_bytes = sum(segment.size for segment in segments[:-1])
        self.active = segments[-1] if segments else None

    def resume(self, closed: ClosedSegments) -> None:
        """Begin with what a clean stop has left; no file is opened for it."""
        end_offsets = [*(base for base, _ in closed.segments[1:]), closed.end_offset]
        segments = []
        for (base, size), end_offset in zip(closed.segments, end_offsets, strict=True):
            segment = Segment(self._files, self._directory, base)
            segment.resume_closed(size, end_offset)
            segments.append(segment)
        self.begin(segments)
        active = segments[-1]
        active.learn_max_timestamp(closed.max_timestamp_ms, closed.offset_of_max_timestamp)
        if active.size > _LATE_INDEX_BYTES:
            active.load_indexes()

    def add(self, segment: Segment) -> None:
        """Make `segment`, which is empty, the active one."""
        if self.active is not None:
            assert segment.base_offset == self.active.next_offset, "segments follow each other"
            self._sealed_bytes += self.active.size
        self.active = segment
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    @property
    def size_bytes(self) -> int:
        return 0 if self.active is None else self._sealed_bytes + self.active.size

    @property
    def base_offsets(self) -> Sequence[int]:
        return tuple(self._bases)

    def facts(self) -> Iterator[SegmentFacts]:
        if self.active is None:
            return
        # By the next base offset: compaction may have taken a sealed segment's last batches.
        ends = chain(islice(self._bases, 1, None), (self.active.next_offset,))
        for segment, end in zip(self._segments, ends, strict=True):
            known = NO_TIMESTAMP if segment.is_missing else segment.max_timestamp_known
            yield SegmentFacts(segment.base_offset, end, segment.size, known)

    async def read_max_timestamp(self, base_offset: int) -> None:
        place = bisect_right(self._bases, base_offset) - 1
        if place < 0 or self._bases[place] != base_offset:
            return
        segment = self._segments[place]
        try:
            await self._read_max_timestamp(segment)
        except Unreadable:
            # Told: what is gone must not keep the segments behind it until the disk is full.
            if not segment.is_missing:
                raise

    async def _read_max_timestamp(self, segment: Segment) -> None:
        try:
            # A descriptor of its own: the segment may be trimmed meanwhile.
            file = self._files.open(segment.path(LOG_SUFFIX))
            found = await HOUSEKEEPING.run(partial(segment.read_max_timestamp, file))
        except OSError as error:
            # Not one that is there and cannot be opened: its right may come back, and its records.
            segment.is_missing = error.errno == errno.ENOENT
            raise self.failed_read(error) from error
        segment.is_missing = False
        segment.learn_max_timestamp(*found)

    # Reading

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview | FileRange | None:
        try:
            for segment in self.since(offset):
                exact = segment.recent_range(
                    offset, max_bytes, end_offset, at_least_one=at_least_one
                )
                if exact is not None:  # A read of the latest batches needs no index.
                    return read_exactly(segment.file, exact, offset, segment.bounds)
                if segment.offset_index is None:
                    return None
                if segment is not self.active:
                    self._cold_indexes.use(segment)
                plan = self._plan(segment, offset, max_bytes, end_offset, at_least_one=at_least_one)
                interval_bytes, index = self.limits.index_interval_bytes, segment.offset_index
                found = read_planned(plan, segment.file, interval_bytes, index)
                if found is not ABSENT:
                    return found
        except OSError as error:
            raise self.failed_read(error) from error
        return _NOTHING

    async def read_cold(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> memoryview:
        for segment in self.since(offset):
            with self._pinned(segment) as file:
                exact = segment.recent_range(
                    offset, max_bytes, end_offset, at_least_one=at_least_one
                )
                if exact is not None:
                    size = exact[1] - exact[0]
                    data = await COLD_READS.run(partial(file.read, size, exact[0]))
                    return whole(data, exact, offset, segment.bounds)
                await self._indexes_of(segment)
                plan = self._plan(segment, offset, max_bytes, end_offset, at_least_one=at_least_one)
                work = partial(perform, plan, file.read, self.limits.index_interval_bytes)
                found = await COLD_READS.run(work)
            if found is not None and found is not ABSENT:
                return found
            if self.is_closed:
                break  # The next segment's name may belong to another partition by now.
        return _NOTHING

    def _plan(
        self, segment: Segment, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool
    ) -> ReadPlan:
        assert segment.offset_index is not None, "its indexes are in memory"
        # Behind a batch that is held back the file has a hole.
        size = self._unsynced.whole_size(segment)
        index, bounds = segment.offset_index, segment.bounds
        return plan_read(
            index, size, bounds, offset, max_bytes, end_offset, at_least_one=at_least_one
        )

    def bytes_between(self, offset: int, end_offset: int) -> int:
        total = 0
        for segment in self.since(offset):
            if max(offset, segment.base_offset) >= end_offset:
                break
            total += segment.bytes_between(offset, end_offset)
        return total

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        for segment in self.since(from_offset):
            start = self._offset_index(segment).lookup(from_offset)
            file = self._unsynced.file_of(segment)
            for _, header, _ in scan(file, start, segment.size, whole=False):
                if header.last_offset >= from_offset:
                    yield header

    def iterate(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        for segment in self.since(from_offset):
            place = bisect_right(self._bases, segment.base_offset)
            is_last = place == len(self._bases)
            end_offset = segment.next_offset if is_last else self._bases[place]
            yield from self._checked(segment, from_offset, end_offset)

    def _checked(
        self, segment: Segment, from_offset: int, end_offset: int
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches of one segment from `from_offset` on. Raises DamagedLog."""
        scanning = partial(
            scan_checked,
            self._unsynced.file_of(segment),
            size=segment.size,
            first_offset=segment.base_offset,
            end_offset=end_offset,
        )
        end = self._offset_index(segment).lookup(from_offset)
        found = next(scanning(end), None)
        if found is None or found[1].base_offset > from_offset:
            # The index may be what is damaged: all of the segment tells.
            end = 0
        for at, header, batch in scanning(end):
            if header.last_offset >= from_offset:
                yield header, batch
            end = at + header.size_bytes
        if end != segment.size:
            raise DamagedLog(segment.path(LOG_SUFFIX), end)

    def _offset_index(self, segment: Segment) -> OffsetIndex:
        """Return a segment's offset index, read now if need be."""
        segment.load_indexes()
        if segment is not self.active:
            self._cold_indexes.use(segment)
        assert segment.offset_index is not None
        return segment.offset_index

    def since(self, offset: int) -> Iterator[Segment]:
        """Yield the segment that contains `offset`, then those after it, as they are when asked."""
        place = max(bisect_right(self._bases, offset) - 1, 0)
        while place < len(self._bases):
            base_offset = self._bases[place]
            yield self._segments[place]
            place = bisect_right(self._bases, base_offset)

    async def offset_for_timestamp(
        self, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> TimestampOffset | None:
        for segment in self.since(start_offset):
            if segment.base_offset >= end_offset or self.is_closed:
                break
            if not await self._learn_max_timestamp(segment):
                return await self.offset_for_timestamp(timestamp_ms, start_offset, end_offset)
            if segment.latest[0] < timestamp_ms:
                continue
            with self._pinned(segment) as file:
                offsets, times = await self._indexes_of(segment)
                position = offsets.lookup(times.lookup(timestamp_ms))
                found = await first_in_file(
                    file, position, segment.size, timestamp_ms, start_offset
                )
            if found is not None:
                return found if found.offset < end_offset else None
        return None

    async def max_timestamp(self, end_offset: int) -> TimestampOffset | None:
        best: tuple[int, int] | None = None
        for segment in self.since(0):
            if segment.base_offset >= end_offset or self.is_closed:
                break
            if not await self._learn_max_timestamp(segment):
                return await self.max_timestamp(end_offset)
            found = segment.latest
            if found[1] >= end_offset:
                found = await self._latest_below(segment, end_offset)
            if segment.size and (best is None or found[0] > best[0]):
                best = found
        if best is None or self.is_closed:
            return None
        batch = await self.read_cold(best[1], 1, end_offset)
        if not batch:
            return None
        header = BatchHeader.parse(batch)
        return await pool_for(header).run(partial(latest_record, batch, header))

    async def _latest_below(self, segment: Segment, end_offset: int) -> tuple[int, int]:
        """Return the segment's largest timestamp below `end_offset`, and its batch's last offset.

        The time index has the largest one up to each entry, so little is left to be read.
        """
        with self._pinned(segment) as file:
            offsets, times = await self._indexes_of(segment)
            known = times.largest_until(end_offset - 1) or (NO_TIMESTAMP, segment.base_offset)
            position = offsets.lookup(end_offset - 1)
            work = partial(latest_in_file, file, position, segment.size, end_offset, known)
            return await COLD_READS.run(work)

    async def _learn_max_timestamp(self, segment: Segment) -> bool:
        """Learn the segment's largest timestamp, from the disk if need be.

        Returns False where the segment was trimmed or replaced meanwhile, or the ledger closed:
        what it held is elsewhere, or gone.
        """
        if segment.max_timestamp_known is None:
            await self._read_max_timestamp(segment)
        place = bisect_left(self._bases, segment.base_offset)
        return self._segments[place : place + 1] == [segment] and not self.is_closed

    @contextmanager
    def _pinned(self, segment: Segment) -> Iterator[Readable]:
        """Keep a segment's file open, to be read in threads. Raises as `failed_read` does."""
        try:
            file = segment.file
            file.pin()
            try:
                yield self._unsynced.file_of(segment)
            finally:
                file.unpin()
        except OSError as error:
            raise self.failed_read(error) from error

    async def _indexes_of(self, segment: Segment) -> tuple[OffsetIndex, TimeIndex]:
        """Return a segment's indexes, which a thread reads where they are not in memory."""
        if segment.offset_index is None:
            work = segment.read_indexes
            # Taken over here, not in the thread: an append may have loaded them meanwhile.
            segment.take_indexes(*await COLD_READS.run(work))
        assert segment.offset_index is not None and segment.time_index is not None
        if segment is not self.active:
            self._cold_indexes.use(segment)
        return segment.offset_index, segment.time_index

    # Trimming

    def trim(self, start_offset: int) -> None:
        """Delete the segments that lie wholly below `start_offset`, never the active one."""
        keep = bisect_right(self._bases, start_offset) - 1
        if keep <= 0:
            return
        trimmed, self._segments = self._segments[:keep], self._segments[keep:]
        self._forget_indexes(trimmed)
        self._bases = self._bases[keep:]
        self._sealed_bytes -= sum(segment.size for segment in trimmed)
        with self._group_commit.storing(self._directory):
            self.discard(
                [path for one in trimmed for path in one.put_aside(DELETED, SEGMENT_SUFFIXES)]
            )

    def discard(self, paths: Sequence[str]) -> None:
        """Delete files that segments, or what stood beside them, have left, now or later."""
        self._may_have_leftovers = True
        if self.discard_later is not None:
            self.discard_later(paths)
        else:
            for path in paths:
                self._files.unlink(path)

    # Cleaning

    async def read_sealed(self, base_offset: int) -> SealedFile | None:
        for sealed in self._sealed([base_offset]):
            return SealedFile(self._files.open(sealed.path(LOG_SUFFIX)), sealed.size)
        return None

    def replacement(self, base_offsets: Sequence[int]) -> FileReplacement | None:
        sealed = self._sealed(base_offsets)
        if not sealed:
            return None
        # A stop may come before the replacement is done: then its files stay behind.
        self._may_have_leftovers = True
        return FileReplacement(self, self._files, self._directory, sealed)

    def _sealed(self, base_offsets: Sequence[int]) -> list[Segment]:
        first = bisect_left(self._bases, base_offsets[0])
        last = first + len(base_offsets)
        are_there = last < len(self._bases) and self._bases[first:last] == list(base_offsets)
        return self._segments[first:last] if are_there and not self.is_closed else []

    def has_segments(self, segments: Sequence[Segment]) -> bool:
        """Whether these are all still there and sealed, and the ledger is open."""
        return self._sealed([one.base_offset for one in segments]) == list(segments)

    def exchange(self, old: Sequence[Segment], new: Segment) -> None:
        """Put one segment in the place of others, which are there."""
        assert new.base_offset == old[0].base_offset, "the new segment begins where the old ones do"
        assert new.next_offset <= old[-1].next_offset, "the new segment ends where the old ones do"
        first = bisect_left(self._bases, new.base_offset)
        self._sealed_bytes += new.size - sum(segment.size for segment in old)
        self._segments[first : first + len(old)] = [new]
        self._forget_indexes(old)
        self._bases[first : first + len(old)] = [new.base_offset]

    # The end

    @property
    def is_closed(self) -> bool:
        """Whether the names on the disk may belong to another partition, or nothing is durable."""
        return self._is_closed or self._group_commit.failure is not None

    def failed(self, error: OSError) -> StorageFailure:
        """Fail for good: nothing of this process becomes durable any more."""
        return self._group_commit.failed(self._directory, error)

    def failed_read(self, error: OSError) -> Exception:
        """Return what a failed read raises: `Unreadable` where the file says so, else as `failed`.

        What cannot be read was durable, and nothing in memory rests on the read: so the broker
        need not stop. After a failed write or sync it must.
        """
        if error.errno not in UNREADABLE | GONE or self._group_commit.failure is not None:
            return self.failed(error)
        if self.on_unreadable is not None:
            self.on_unreadable(error)
        return Unreadable(self._directory, error, is_damaged=isinstance(error, DamagedBatch))

    def as_closed(self) -> ClosedSegments | None:
        """Return what the next start need not find out. None: there is nothing, or there are files
        left over that only a recovery deletes."""
        active = self.active
        if active is None:
            return None
        if self._may_have_leftovers and any(
            name.endswith(LEFTOVER_SUFFIXES) for name in self._files.list(self._directory)
        ):
            return None
        segments = [(segment.base_offset, segment.size) for segment in self._segments]
        return ClosedSegments(segments, active.next_offset, *active.latest)

    def close(self) -> None:
        """Close all files. A read in a thread goes on with the file that it has pinned."""
        self._is_closed = True
        self.discard_later = self.on_unreadable = None
        self._forget_indexes(self._segments)
        for segment in self._segments:
            segment.close()

    def _forget_indexes(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self._cold_indexes.forget(segment)
