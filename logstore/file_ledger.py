"""A ledger in files: a directory of segments in Kafka's on-disk format.

Appends go to the active segment's file and are durable with the next group commit. What a sync is
to cover is collected here: files written, segments closed by a roll with their indexes, new names.
Directory and files are made by the first write, so that an empty partition costs nothing.

The recovery point moves when a sync has covered the indexes too: at a roll, and whenever the active
segment has grown by `CHECKPOINT_BYTES`, which bounds what recovery has to read.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter

from logstore.attachments import Attachments
from logstore.barriers import Barrier, Procedure
from logstore.barriers import perform as perform_all
from logstore.durability import Durability
from logstore.durable_end import CommittedLedger
from logstore.files import File, FileSystem
from logstore.group_commit import GroupCommit, Sync
from logstore.ledger import (
    Buffer,
    LedgerFenced,
    SegmentFacts,
    SegmentLimits,
    StorageFailure,
    TimestampOffset,
)
from logstore.recovery import Recovered, Recovery
from logstore.replacement import FileReplacement, SealedFile
from logstore.segment import LOG_SUFFIX, Segment
from logstore.segment_reads import ABSENT, perform, plan_read, scan
from logstore.timestamps import first_in_segments, latest_record
from wire.records import BatchHeader

#: Bytes appended to a segment after which its indexes are synced and the recovery point moves.
CHECKPOINT_BYTES = 64 * 1024 * 1024

_NOTHING = memoryview(b"")


class FileLedger(CommittedLedger):
    """One partition's directory. `open` comes first, after `close` nothing."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        group_commit: GroupCommit,
        limits: SegmentLimits,
        *,
        start_offset: int = 0,
        recovery_point: int = 0,
        clean: bool = False,
    ) -> None:
        """`start_offset` and `recovery_point` as last checkpointed; `clean`: closed cleanly then.

        The directory is to be this process's alone: whoever holds many of them holds a lock.
        """
        super().__init__(group_commit)
        self.limits = limits
        #: What `open` found, for the log and for tests.
        self.recovered: Recovered | None = None
        self._files = files
        self._directory = directory
        self._attachments = Attachments(files, directory)
        self._was_clean = clean
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._start_offset = self._end_offset = self._durable_end_offset = start_offset
        self._recovery_point = recovery_point
        self._checkpointed_bytes = 0  # of the active segment
        self._has_directory = False
        # For the next sync: files of segments rolled, indexes (closed after it), directories.
        self._rolled_files: list[File] = []
        self._index_files: list[File] = []
        self._new_names: set[str] = set()
        self._is_dirty = False  # the active segment has bytes that no sync has covered
        # How often names were made, and how many of those times are durable. A segment is begun
        # only when all names before it are, so that none can be missing at the log's beginning.
        self._names_made = self._names_durable = 0
        # Of the sync under way.
        self._files_in_sync: Sequence[File] = ()
        self._names_in_sync = 0
        self._closing: list[File] = []
        self._next_recovery_point = recovery_point

    @property
    def start_offset(self) -> int:
        return self._start_offset

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def recovery_point(self) -> int:
        return self._recovery_point

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

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

    def open(self, epoch: int) -> None:
        self._attempt(lambda: perform_all(self._files, self.opening(epoch)))

    def opening(self, epoch: int) -> Procedure[None]:
        recovery = Recovery(
            self._files,
            self._directory,
            self.limits,
            self._start_offset,
            self._recovery_point,
            self._was_clean,
        )
        try:
            self._has_directory = self._files.exists(self._directory)
            recovered = yield from recovery.steps()
        except OSError as error:
            raise self.failed(error) from error
        if recovered.leader_epoch > epoch:
            raise LedgerFenced(f"epoch {epoch}, but epoch {recovered.leader_epoch} has written")
        self.recovered = recovered
        self._segments = recovered.segments
        self._bases = [segment.base_offset for segment in self._segments]
        if self._segments:
            self._start_offset = max(self._start_offset, self._bases[0])
            self._checkpointed_bytes = self._segments[-1].size
        self._end_offset = self._durable_end_offset = recovered.end_offset
        self._recovery_point = self._next_recovery_point = recovered.end_offset

    # Appending

    def append(self, batch: Buffer, header: BatchHeader, *, may_wait: bool = False) -> None:
        assert header.base_offset == self._end_offset, "a batch begins at the log's end"
        assert header.size_bytes == len(batch), "one whole batch"
        self._group_commit.touch(self, may_wait=may_wait)
        if self._segments and self._segments[-1].is_full_for(header, self.limits):
            self.on_roll(self._end_offset)
            self._attempt(self._roll)
        try:
            if not self._segments:
                self._add_segment()
            self._segments[-1].append(batch, header, self.limits.index_interval_bytes)
        except OSError as error:
            raise self.failed(error) from error
        self._is_dirty = True
        self._end_offset = header.next_offset
        self._appended_bytes += len(batch)

    def _roll(self) -> None:
        self._close_active()
        self._add_segment()

    def _close_active(self) -> None:
        active = self._segments[-1]
        self._index_files += active.flush_indexes(final=True)
        if self._is_dirty:
            active.file.pin()
            self._rolled_files.append(active.file)
            self._is_dirty = False
        active.become_inactive()

    def _add_segment(self) -> None:
        self._ensure_directory()
        if self._segments and self._names_durable != self._names_made:
            self._sync_names()
        self._segments.append(Segment.create(self._files, self._directory, self._end_offset))
        self._bases.append(self._end_offset)
        self._new_names.add(self._directory)
        self._names_made += 1
        self._checkpointed_bytes = 0

    def _sync_names(self) -> None:
        for directory in (self._directory, os.path.dirname(self._directory)):
            self._files.sync_directory(directory)
        self._names_durable = self._names_made

    def _ensure_directory(self) -> None:
        if not self._has_directory:
            self._files.make_directory(self._directory)
            self._has_directory = True
            self._new_names |= {self._directory, os.path.dirname(self._directory)}

    # Durability

    def begin_sync(self) -> Sync:
        self._next_recovery_point = max(self._recovery_point, self._bases[-1] if self._bases else 0)
        if self._is_dirty:
            active = self._segments[-1]
            active.file.pin()
            self._rolled_files.append(active.file)
            if active.size - self._checkpointed_bytes >= CHECKPOINT_BYTES:
                self._attempt(self._flush_active_indexes)
                self._next_recovery_point = self._end_offset
        pinned = [*self._rolled_files, *self._attachments.dirty.values()]
        for file in self._attachments.dirty.values():
            file.pin()
        self._attachments.close()
        self._begun_end_offset = self._end_offset
        self._begun_bytes = self._appended_bytes
        sync = Sync(self._end_offset, [*pinned, *self._index_files], sorted(self._new_names))
        self._files_in_sync = sync.files
        self._names_in_sync = self._names_made
        self._closing, self._index_files = self._index_files, []
        self._rolled_files = []
        self._new_names = set()
        self._is_dirty = False
        return sync

    def _flush_active_indexes(self) -> None:
        active = self._segments[-1]
        self._index_files += active.flush_indexes()
        self._checkpointed_bytes = active.size
        self._new_names.add(self._directory)

    def complete_sync(self, sync: Sync) -> None:
        super().complete_sync(sync)
        self._names_durable = max(self._names_durable, self._names_in_sync)
        if self._group_commit.durability is Durability.FSYNC:
            self._recovery_point = self._next_recovery_point
        for file in sync.files[: len(sync.files) - len(self._closing)]:
            file.unpin()
        for file in self._closing:
            file.close()
        self._closing = []
        self._files_in_sync = ()

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
                    index, segment.size, offset, max_bytes, end_offset, at_least_one=at_least_one
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
                    await loop.run_in_executor(None, segment.load_indexes)
                    assert segment.offset_index is not None
                plan = plan_read(
                    segment.offset_index,
                    segment.size,
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
            start = segment.offset_index.lookup(offset)
            for _, header, data in scan(segment.file, start, segment.size, whole=whole):
                if header.last_offset >= offset:
                    yield header, data

    def _segments_from(self, offset: int) -> Iterator[Segment]:
        """The segment that contains `offset`, then those after it, as they are when asked for."""
        place = max(bisect_right(self._bases, offset) - 1, 0)
        while place < len(self._bases):
            base_offset = self._bases[place]
            yield self._segments[place]
            place = bisect_right(self._bases, base_offset)

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: int) -> TimestampOffset | None:
        found = first_in_segments(list(self._segments), timestamp_ms, self._start_offset)
        return found if found is not None and found.offset < end_offset else None

    def max_timestamp(self) -> TimestampOffset | None:
        found = [segment.max_timestamp() for segment in self._segments if segment.size]
        best = max(found, key=itemgetter(0), default=None)
        if best is None or (batch := self.batch_at(best[1])) is None:
            return None
        return latest_record(batch, BatchHeader.parse(batch))

    # Trimming

    def reconfigure(self, limits: SegmentLimits) -> None:
        self.limits = limits

    def roll(self) -> None:
        if self._segments and self._segments[-1].size:
            assert self._durable_end_offset == self._end_offset
            self._group_commit.touch(self)
            self.on_roll(self._end_offset)
            self._attempt(self._roll)
            self._attempt(self._sync_names)

    def hold(self, end_offset: int) -> Callable[[], None]:
        ends = [*self._bases[1:], self._end_offset]
        count = bisect_right(ends, end_offset) if self._bases else 0
        held: list[File] = []
        try:
            for segment in self._segments[:count]:
                held.append(self._files.open(segment.path(LOG_SUFFIX)))
        except OSError as error:
            raise self.failed(error) from error

        def let_go() -> None:
            for file in held:
                file.close()

        return let_go

    def trim(self, start_offset: int) -> None:
        if start_offset <= self._start_offset:
            return
        assert start_offset <= self._durable_end_offset
        self._start_offset = start_offset
        keep = 0
        while keep + 1 < len(self._bases) and self._bases[keep + 1] <= start_offset:
            keep += 1
        trimmed, self._segments = self._segments[:keep], self._segments[keep:]
        self._bases = self._bases[keep:]
        for segment in trimmed:
            self._attempt(segment.delete)

    # Cleaning

    def read_sealed(self, base_offset: int) -> SealedFile | None:
        for sealed in self._sealed([base_offset]):
            return SealedFile(self._files.open(sealed.path(LOG_SUFFIX)), sealed.size)
        return None

    def replacement(self, base_offsets: Sequence[int]) -> FileReplacement | None:
        sealed = self._sealed(base_offsets)
        return FileReplacement(self, self._files, self._directory, sealed) if sealed else None

    def _sealed(self, base_offsets: Sequence[int]) -> list[Segment]:
        first = bisect_left(self._bases, base_offsets[0])
        last = first + len(base_offsets)
        are_there = last < len(self._bases) and self._bases[first:last] == list(base_offsets)
        return self._segments[first:last] if are_there and not self.is_closed else []

    def has_segments(self, segments: Sequence[Segment]) -> bool:
        return self._sealed([one.base_offset for one in segments]) == list(segments)

    def exchange(self, old: Sequence[Segment], new: Segment) -> None:
        first = bisect_left(self._bases, new.base_offset)
        self._segments[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]

    # Attachments

    def write_attachment(self, name: str, data: Buffer, *, sync: bool = True) -> None:
        self._attempt(self._ensure_directory)
        self._attempt(partial(self._attachments.write, name, data, sync=sync))
        if not sync:
            self._new_names.add(self._directory)
        elif os.path.dirname(self._directory) in self._new_names:
            self._attempt(self._sync_names)
            self._new_names.clear()

    def replacing_attachment(self, name: str, data: Buffer) -> Procedure[None]:
        self._attempt(self._ensure_directory)
        yield from self._attachments.replacing(name, data)

    def append_attachment(self, name: str, data: Buffer) -> None:
        self._group_commit.touch(self)
        self._attempt(self._ensure_directory)
        try:
            if self._attachments.append(name, data):
                self._new_names.add(self._directory)
        except OSError as error:
            raise self.failed(error) from error

    def read_attachment(self, name: str) -> bytes | None:
        return self._attachments.read(name)

    def list_attachments(self) -> list[str]:
        return self._attachments.list()

    def delete_attachment(self, name: str) -> None:
        self._attempt(partial(self._attachments.delete, name))

    # The end

    def close(self, *, clean: bool) -> None:
        if clean and self._group_commit.failure is None:
            self._attempt(lambda: perform_all(self._files, self.securing()))
        self._stop_committing()
        self._attachments.close()
        for file in self._index_files:
            file.close()
        for file in self._rolled_files:
            file.unpin()
        for segment in self._segments:
            segment.close()

    def securing(self) -> Procedure[None]:
        """What a sync under way covers is synced here too: its end is not waited for."""
        is_synced = self._recovery_point == self._end_offset
        if is_synced and not (self._new_names or self._attachments.dirty or self._files_in_sync):
            return
        if self._segments:
            self._index_files += self._segments[-1].flush_indexes(final=True)
        files = [*self._files_in_sync, *self._rolled_files, *self._index_files]
        files += self._attachments.dirty.values()
        if self._segments:
            files.append(self._segments[-1].file)
        yield Barrier(files, (self._directory, os.path.dirname(self._directory)))
        self._names_durable = self._names_made
        self._new_names.clear()
        self._files_in_sync = ()
        self._durable_end_offset = self._recovery_point = self._end_offset

    def _attempt(self, perform_io: Callable[[], None]) -> None:
        try:
            perform_io()
        except OSError as error:
            raise self.failed(error) from error

    def failed(self, error: OSError) -> StorageFailure:
        """Nothing of this process may become durable or visible any more."""
        failure = StorageFailure(f"{self._directory}: {error}")
        self._group_commit.fail(failure)
        return failure
