"""A ledger in files: a directory of segments in Kafka's on-disk format.

Appends go to the active segment's file and are durable with the next group commit. What a sync is
to cover is collected here: files written, segments closed by a roll with their indexes, new names.
Directory and files are made by the first write, so that an empty partition costs nothing.

The recovery point moves when a sync has covered the indexes too: at a roll, and whenever the active
segment has grown by `CHECKPOINT_BYTES`, which bounds what recovery has to read. Reading is
`stored_segments`' business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from logstore.disk.barriers import Barrier, Procedure
from logstore.disk.barriers import perform as perform_all
from logstore.disk.durability import Durability
from logstore.disk.files import Buffer, File, FileSystem
from logstore.segments.attachments import Attachments
from logstore.segments.ledger import LedgerFenced, SegmentLimits
from logstore.segments.names import DELETED, LEFTOVER_SUFFIXES, SEGMENT_SUFFIXES
from logstore.segments.recovery import Recovered, Recovery
from logstore.segments.replacement import FileReplacement
from logstore.segments.segment import Segment
from logstore.segments.segment_reads import Readable
from logstore.segments.stored_segments import ClosedSegments, StoredSegments
from logstore.segments.unsynced import Held, Unsynced
from logstore.sync.group_commit import GroupCommit, Sync
from wire.records import BatchHeader
from wire.records.header import LENGTH_OVERHEAD

#: Bytes appended to a segment after which its indexes are synced and the recovery point moves.
CHECKPOINT_BYTES = 64 * 1024 * 1024
#: The indexes of a shorter last segment are read when they are needed: in a few milliseconds.
_LATE_INDEX_BYTES = 16 * 1024 * 1024


class FileLedger(StoredSegments):
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
        closed: ClosedSegments | None = None,
        topic_id: UUID | None = None,
    ) -> None:
        """`start_offset` and `recovery_point` as last checkpointed; `clean`: closed cleanly then,
        and what nobody has changed since is known as `closed`.

        The directory is to be this process's alone: whoever holds many of them holds a lock.
        """
        super().__init__(files, directory, group_commit, limits, start_offset)
        #: What `open` found, for the log and for tests.
        self.recovered: Recovered | None = None
        self._attachments = Attachments(files, directory)
        self._was_clean = clean
        self._closed = closed
        #: Moved by opening, by syncs and by a clean close only.
        self.recovery_point = recovery_point
        self._checkpointed_bytes = 0  # of the active segment
        self._flushed_end_offset = start_offset  # of interest with page-cache durability
        self._is_flush_asked = False
        self._has_directory = False
        self._may_have_leftovers = False
        #: Deletes files that segments have left, when it suits; None: at once.
        self.discard_later: Callable[[Sequence[str]], None] | None = None
        # For the next sync: files of segments rolled, indexes (closed after it), directories.
        self._rolled_files: list[File] = []
        self._index_files: list[File] = []
        self._new_names: set[str] = set()
        self._is_dirty = False  # the active segment has bytes that no sync has covered
        self._unsynced = Unsynced(directory, topic_id)
        # How often names were made, and how many of those times are durable. A segment is begun
        # only when all names before it are, so that none can be missing at the log's beginning.
        self._names_made = self._names_durable = 0
        # Of the sync under way.
        self._files_in_sync: Sequence[File] = ()
        self._names_in_sync = 0
        self._closing: list[File] = []
        self._next_recovery_point = recovery_point

    def open(self, epoch: int) -> None:
        self._attempt(lambda: perform_all(self._files, self.opening(epoch)))

    def opening(self, epoch: int) -> Procedure[None]:
        closed, self._closed = self._closed, None
        if closed is not None:
            self._attempt(lambda: self._resume(closed))
        else:
            yield from self._recovering(epoch)

    def _resume(self, closed: ClosedSegments) -> None:
        self._has_directory = True
        end_offsets = [*(base for base, _ in closed.segments[1:]), closed.end_offset]
        for (base, size), end_offset in zip(closed.segments, end_offsets, strict=True):
            segment = Segment(self._files, self._directory, base)
            segment.resume_closed(size, end_offset)
            self._segments.append(segment)
        active = self._segments[-1]
        active.learn_max_timestamp(closed.max_timestamp_ms, closed.offset_of_max_timestamp)
        if active.size > _LATE_INDEX_BYTES:
            active.load_indexes()
        self._begin_at(closed.end_offset)

    def _begin_at(self, end_offset: int) -> None:
        """Begin with the segments there are: all of it is durable."""
        self._bases = [segment.base_offset for segment in self._segments]
        self._sealed_bytes = sum(segment.size for segment in self._segments[:-1])
        if self._segments:
            self.start_offset = max(self.start_offset, self._bases[0])
            self._checkpointed_bytes = self._segments[-1].size
        self._end_offset = self._durable_end_offset = self._flushed_end_offset = end_offset
        self.recovery_point = self._next_recovery_point = end_offset

    def _recovering(self, epoch: int) -> Procedure[None]:
        recovery = Recovery(
            self._files,
            self._directory,
            self.limits,
            self.start_offset,
            self.recovery_point,
            self._was_clean,
        )
        try:
            recovered = yield from recovery.steps()
            self._has_directory = recovered.names is not None
            self._attachments.remember(recovered.names or ())
        except OSError as error:
            raise self.failed(error) from error
        if recovered.leader_epoch > epoch:
            raise LedgerFenced(f"epoch {epoch}, but epoch {recovered.leader_epoch} has written")
        self.recovered = recovered
        self._segments = recovered.segments
        self._begin_at(recovered.end_offset)

    def opened(self) -> None:
        self._attachments.forget()

    # Appending

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
        assert LENGTH_OVERHEAD + header.batch_length == size_bytes, "one whole batch"
        self._group_commit.touch(self, may_wait=may_wait)
        if not self._segments:
            self._attempt(self._add_segment)
        elif self._segments[-1].is_full_for(header, self.limits):
            self.on_roll(self._end_offset)
            self._attempt(self._roll)
        segment, has_journal = self._segments[-1], self._group_commit.has_journal
        position = segment.size
        if is_atomic and has_journal:
            self._unsynced.hold(segment, batch, position)
        else:
            try:
                segment.file.write((batch,), position)
            except OSError as error:
                raise self.failed(error) from error
            self._is_dirty = True
            if has_journal:
                self._unsynced.note_written(segment.log_name, position, batch)
        segment.append(header, self.limits.index_interval_bytes)
        self._end_offset = segment.next_offset
        self._appended_bytes += size_bytes

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
        if self._segments:
            self._sealed_bytes += self._segments[-1].size
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
        self._next_recovery_point = self.recovery_point
        if self._bases and self._bases[-1] > self.recovery_point:
            self._next_recovery_point = self._bases[-1]
        pinned, self._rolled_files = self._rolled_files, []
        if self._is_dirty:
            active = self._segments[-1]
            file = active.file
            file.pin()
            pinned.append(file)
            if active.size - self._checkpointed_bytes >= CHECKPOINT_BYTES:
                self._attempt(self._flush_active_indexes)
                self._next_recovery_point = self._end_offset
        if self._attachments.dirty:
            for file in self._attachments.dirty.values():
                file.pin()
                pinned.append(file)
            self._attachments.close()
        self._begun_end_offset = self._end_offset
        self._begun_bytes = self._appended_bytes
        names = sorted(self._new_names) if self._new_names else ()
        sync = Sync(self._end_offset, [*pinned, *self._index_files], names)
        written, sync.held = self._unsynced.begin()
        if not (self._index_files or self._new_names):
            sync.written = written
        if self._group_commit.durability is Durability.PAGE_CACHE and self._is_flush_due():
            self._attempt(partial(self._make_flush, sync))
        self._files_in_sync = sync.files
        self._names_in_sync = self._names_made
        self._closing, self._index_files = self._index_files, []
        self._new_names = set()
        self._is_dirty = False
        return sync

    def flush(self) -> bool:
        if self._flushed_end_offset == self._end_offset:
            return False
        self._is_flush_asked = True
        self._group_commit.touch(self)
        return True

    def _is_flush_due(self) -> bool:
        unflushed = self._end_offset - self._flushed_end_offset
        return self._is_flush_asked or unflushed >= self.limits.flush_messages

    def _make_flush(self, sync: Sync) -> None:
        """Have the sync cover what earlier ones have left to the page cache too."""
        self._is_flush_asked = False
        files = [segment.file for segment in self._segments_from(self._flushed_end_offset)]
        for file in files:
            file.pin()
        sync.files = [*files, *sync.files]
        sync.directories = (self._directory, os.path.dirname(self._directory))
        sync.is_flush = True

    def _flush_active_indexes(self) -> None:
        active = self._segments[-1]
        self._index_files += active.flush_indexes()
        self._checkpointed_bytes = active.size
        self._new_names.add(self._directory)

    def complete_sync(self, sync: Sync) -> None:
        super().complete_sync(sync)
        if self._names_durable < self._names_in_sync:
            self._names_durable = self._names_in_sync
        if self._group_commit.durability is Durability.FSYNC:
            self.recovery_point = self._next_recovery_point
        if sync.is_flush:
            self._flushed_end_offset = sync.end_offset
        for file in sync.files[: len(sync.files) - len(self._closing)]:
            file.unpin()
        for file in self._closing:
            file.close()
        self._closing = []
        self._files_in_sync = ()
        held = self._unsynced.take_synced()
        if held and not self.is_closed:
            self._attempt(partial(_write, held))

    def _whole_size(self, segment: Segment) -> int:
        return self._unsynced.whole_size(segment)

    def _readable(self, segment: Segment) -> Readable:
        return self._unsynced.file_of(segment)

    async def settled(self) -> None:
        await self._group_commit.settle()

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

    def trim(self, start_offset: int) -> None:
        if start_offset <= self.start_offset:
            return
        assert start_offset <= self._durable_end_offset
        self.start_offset = start_offset
        keep = 0
        while keep + 1 < len(self._bases) and self._bases[keep + 1] <= start_offset:
            keep += 1
        trimmed, self._segments = self._segments[:keep], self._segments[keep:]
        self._bases = self._bases[keep:]
        self._sealed_bytes -= sum(segment.size for segment in trimmed)
        if trimmed:
            self._may_have_leftovers = True
            self._attempt(lambda: self.discard(self._put_aside(trimmed)))

    def discard(self, paths: Sequence[str]) -> None:
        if self.discard_later is not None:
            self.discard_later(paths)
        else:
            for path in paths:
                self._files.unlink(path)

    def _put_aside(self, segments: Sequence[Segment]) -> list[str]:
        return [
            path for segment in segments for path in segment.put_aside(DELETED, SEGMENT_SUFFIXES)
        ]

    # Cleaning

    def replacement(self, base_offsets: Sequence[int]) -> FileReplacement | None:
        sealed = self._sealed(base_offsets)
        if not sealed:
            return None
        # Also where it is given up halfway, by a stop.
        self._may_have_leftovers = True
        return FileReplacement(self, self._files, self._directory, sealed)

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
            position, is_new = self._attachments.append(name, data)
            if self._group_commit.has_journal:
                self._unsynced.note_written(name, position, data)
            if is_new:
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
        self._unsynced.take_all()
        self.discard_later = None
        self._attachments.close()
        for file in self._index_files:
            file.close()
        for file in self._rolled_files:
            file.unpin()
        for segment in self._segments:
            segment.close()

    def as_closed(self) -> ClosedSegments | None:
        """What the next start need not find out, once all is durable; None: there is nothing."""
        if not self._segments or self.recovery_point != self._end_offset:
            return None
        if self._may_have_leftovers and any(
            name.endswith(LEFTOVER_SUFFIXES) for name in self._files.list(self._directory)
        ):
            return None  # Who finds out deletes them.
        segments = [(segment.base_offset, segment.size) for segment in self._segments]
        return ClosedSegments(segments, self._end_offset, *self._segments[-1].latest)

    def securing(self) -> Procedure[None]:
        """What a sync under way covers is synced here too: its end is not waited for."""
        if held := self._unsynced.take_all():
            self._attempt(partial(_write, held))
            self._is_dirty = True
        is_synced = self.recovery_point == self._end_offset and not self._is_dirty
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
        self._durable_end_offset = self.recovery_point = self._end_offset

    def _attempt(self, perform_io: Callable[[], None]) -> None:
        try:
            perform_io()
        except OSError as error:
            raise self.failed(error) from error


def _write(held: Sequence[Held]) -> None:
    for one in held:
        one.write()
