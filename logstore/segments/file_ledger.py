"""A ledger in files: a directory of segments in Kafka's on-disk format.

Appends go to the active segment's file and are durable with the next group commit. What a sync is
to cover is collected here: files written, segments closed by a roll with their indexes, new names.
Directory and files are made by the first write, so that an empty partition costs nothing.

The recovery point moves when a sync has covered the indexes too: at a roll, and whenever the active
segment has grown by `CHECKPOINT_BYTES`, which bounds what recovery has to read. Reading is
`ledger.batches`, the list of segments `ledger.segments` (`stored_segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from logstore.disk.barriers import Barrier, Procedure
from logstore.disk.durability import Durability
from logstore.disk.files import Buffer, File, FileSystem
from logstore.disk.room import FULL, NoRoom
from logstore.segments.attachments import FileAttachments
from logstore.segments.batch_recovery import Recovered, Recovery
from logstore.segments.closed_segments import ClosedSegments
from logstore.segments.cold_indexes import ColdIndexes
from logstore.segments.ledger import LedgerFenced, SegmentLimits
from logstore.segments.segment import Segment
from logstore.segments.stored_segments import StoredSegments
from logstore.segments.unsynced import Held, UnsyncedBytes, UnsyncedNames
from logstore.sync.group_commit import CommittedLedger, GroupCommit, Sync
from wire.records import BatchHeader
from wire.records.header import LENGTH_OVERHEAD

#: Bytes appended to a segment after which its indexes are synced and the recovery point moves.
CHECKPOINT_BYTES = 64 * 1024 * 1024


def _ignore(_: Recovered) -> None:
    """The hook before one is set."""


class FileLedger(CommittedLedger):
    """One partition's directory. Perform `opening` before anything else, nothing after `close`."""

    has_files = True

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
        cold_indexes: ColdIndexes | None = None,
    ) -> None:
        """`start_offset` and `recovery_point` as last checkpointed. `clean`: the log was closed
        cleanly then. `closed`: and these segments have not changed since. `cold_indexes`: the
        account that several ledgers share; None: one of its own.

        The caller keeps other processes out of the directory, by a lock above it.
        """
        super().__init__(group_commit, start_offset)
        self._group_commit = group_commit
        #: What opening found, for the log and for tests.
        self.recovered: Recovered | None = None
        #: Is told by opening what the log lacks, before anything is cut off.
        self.before_cut: Callable[[Recovered], None] = _ignore
        #: Moved by opening, by syncs and by securing only.
        self.recovery_point = recovery_point
        self.trimmed: Sequence[Segment] = ()
        self._files = files
        self._directory = directory
        self._was_clean = clean
        self._closed = closed
        self._unsynced = UnsyncedBytes(directory, topic_id)
        self._names = UnsyncedNames(files, directory)
        self.segments = StoredSegments(
            files,
            directory,
            group_commit,
            limits,
            self._unsynced,
            ColdIndexes() if cold_indexes is None else cold_indexes,
        )
        self.batches = self.segments
        self.attachments = FileAttachments(
            files,
            directory,
            self._names,
            self._unsynced,
            self,
            group_commit,
            self.segments.discard,
        )
        self._small_files = self.attachments.small_files
        self._checkpointed_bytes = 0  # of the active segment
        self._flushed_end_offset = start_offset  # of interest with page-cache durability
        self._is_flush_asked = False
        # For the next sync: the active segment's file, those of segments rolled (pinned), indexes.
        self._is_dirty = False
        self._rolled_files: list[File] = []
        self._index_files: list[File] = []
        # For the sync under way: its files; of these, what it unpins and what it closes at its end.
        self._files_in_sync: Sequence[File] = ()
        self._unpinning: Sequence[File] = ()
        self._closing: Sequence[File] = ()
        self._next_recovery_point = recovery_point

    def opening(self, epoch: int) -> Procedure[None]:
        closed, self._closed = self._closed, None
        if closed is not None:
            self._names.has_directory = True
            with self._group_commit.storing(self._directory):
                self.segments.resume(closed)
            self._begin_at(closed.end_offset)
        else:
            yield from self._recovering(epoch)

    def _recovering(self, epoch: int) -> Procedure[None]:
        recovery = Recovery(
            self._files,
            self._directory,
            self.segments.limits,
            self.start_offset,
            self.recovery_point,
            self._was_clean,
            self.before_cut,
        )
        try:
            recovered = yield from recovery.steps()
        except OSError as error:
            raise self.segments.failed(error) from error
        if recovered.leader_epoch > epoch:
            raise LedgerFenced(f"epoch {epoch}, but epoch {recovered.leader_epoch} has written")
        self._names.has_directory = recovered.names is not None
        self._small_files.remember(recovered.names or ())
        self.recovered, self.trimmed = recovered, recovered.trimmed
        self.segments.begin(recovered.segments)
        self._begin_at(recovered.end_offset)

    def _begin_at(self, end_offset: int) -> None:
        """Begin with the segments there are: all of them are durable."""
        active = self.segments.active
        if active is not None:
            assert active.next_offset == end_offset, "the log ends where its last segment does"
            self.start_offset = max(self.start_offset, self.segments.base_offsets[0])
            self._checkpointed_bytes = active.size
        self.end_offset = self.durable_end_offset = self._flushed_end_offset = end_offset
        self.recovery_point = self._next_recovery_point = end_offset

    def opened(self) -> None:
        self._small_files.forget()
        if self.trimmed:
            with self._group_commit.storing(self._directory):
                for segment in self.trimmed:
                    segment.delete()
            self.trimmed = ()

    # Appending

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        may_wait: bool = False,
        is_atomic: bool = False,
        is_refusable: bool = False,
    ) -> None:
        size_bytes = len(batch)
        assert header.base_offset == self.end_offset, "a batch begins at the log's end"
        assert LENGTH_OVERHEAD + header.batch_length == size_bytes, "one whole batch"
        group_commit, segments = self._group_commit, self.segments
        group_commit.touch(self, may_wait=may_wait)
        segment = segments.active
        try:
            is_full = segment is None or segment.is_full_for(header, segments.limits)
        except OSError as error:
            raise segments.failed_read(error) from error
        if segment is None or is_full:
            segment = self._begin_segment()
        position = segment.size
        if is_atomic and group_commit.has_journal:
            self._unsynced.hold(segment, batch, position)
        else:
            try:
                (segment.open_file or segment.file).write((batch,), position)
            except OSError as error:
                if is_refusable and error.errno in FULL:
                    self._take_back(segment, error)
                raise segments.failed(error) from error
            self._is_dirty = True
            if group_commit.has_journal:
                if group_commit.may_journal(size_bytes):
                    self._unsynced.note_written(segment.log_name, position, batch)
                else:
                    self._unsynced.leave_to_files()
        segment.append(header, segments.limits.index_interval_bytes)
        self.end_offset = segment.next_offset

    def _take_back(self, segment: Segment, error: OSError) -> None:
        """Cut off what a write has left that found no room. Raises NoRoom, or OSError."""
        with self._group_commit.storing(self._directory):
            file = segment.file
            if file.size() > segment.size:
                file.truncate(segment.size)
        # The next sync covers the file itself: what was cut off, a client's bytes, must not be on
        # the disk behind a later batch that only the journal has.
        self._is_dirty = True
        self._unsynced.leave_to_files()
        self._group_commit.on_full()
        raise NoRoom(f"{self._directory}: {error}") from error

    def _begin_segment(self) -> Segment:
        """End the active segment, if there is one; return the next one, to be appended to."""
        names, active = self._names, self.segments.active
        if active is not None:
            self.on_roll(self.end_offset)
        with self._group_commit.storing(self._directory):
            if active is not None:
                self._end_segment(active)
            names.ensure_directory()
            if names.lacks_segment:
                names.sync()
            segment = Segment.create(self._files, self._directory, self.end_offset)
        self.segments.add(segment)
        names.add_segment()
        self._checkpointed_bytes = 0
        return segment

    def _end_segment(self, active: Segment) -> None:
        self._index_files += active.flush_indexes(final=True)
        if self._is_dirty:
            active.file.pin()
            self._rolled_files.append(active.file)
            self._is_dirty = False
        active.become_inactive()

    # Durability

    def begin_sync(self) -> Sync:
        active = self.segments.active
        self._next_recovery_point = self.recovery_point
        if active is not None and active.base_offset > self.recovery_point:
            self._next_recovery_point = active.base_offset
        files: list[File] = []
        if self._is_dirty:
            assert active is not None, "bytes were written to it"
            files.append(active.open_file or active.file)
            self._is_dirty = False
            if active.size - self._checkpointed_bytes >= CHECKPOINT_BYTES:
                self._checkpoint(active)
        self._begun_end_offset = self.end_offset
        written, held = self._unsynced.begin()
        sync = Sync(self.end_offset, files)
        if held:
            sync.held = held
        if self._index_files or self._names.dirty:
            sync.directories = self._names.begin()
        else:
            # Nothing but appended bytes: an index or a name is in no journal.
            sync.written = written
        if self._rolled_files or self._index_files or self._small_files.dirty:
            self._unpinning, self._rolled_files = self._rolled_files, []
            self._closing = [*self._index_files, *self._small_files.take_dirty()]
            self._index_files = []
            files += [*self._unpinning, *self._closing]
        if self._group_commit.durability is Durability.PAGE_CACHE and self._is_flush_due():
            self._make_flush(sync)
        self._files_in_sync = sync.files
        return sync

    def _checkpoint(self, active: Segment) -> None:
        """Sync the indexes with the batches, so that recovery need not read what is before."""
        with self._group_commit.storing(self._directory):
            self._index_files += active.flush_indexes()
        self._checkpointed_bytes = active.size
        self._next_recovery_point = self.end_offset
        self._names.add()

    def flush(self) -> bool:
        if self._flushed_end_offset == self.end_offset:
            return False
        self._is_flush_asked = True
        self._group_commit.touch(self)
        return True

    def _is_flush_due(self) -> bool:
        unflushed = self.end_offset - self._flushed_end_offset
        return self._is_flush_asked or unflushed >= self.segments.limits.flush_messages

    def _make_flush(self, sync: Sync) -> None:
        """Make the sync cover what earlier ones have left to the page cache too."""
        self._is_flush_asked = False
        with self._group_commit.storing(self._directory):
            sync.files = [*self._unflushed_files(), *sync.files]
        sync.directories = self._names.both
        sync.is_flush = True

    def _unflushed_files(self) -> list[File]:
        """Return the segments that may have more than is on the disk: the active one, and with
        page-cache durability those before it that no flush has covered."""
        is_left = self._group_commit.durability is Durability.PAGE_CACHE
        first_offset = self._flushed_end_offset if is_left else self.end_offset
        return [segment.file for segment in self.segments.since(first_offset)]

    def complete_sync(self, sync: Sync) -> None:
        if sync.directories:
            self._names.complete()
        if self._group_commit.durability is Durability.FSYNC:
            assert self._next_recovery_point <= self.durable_end_offset, "indexed, but not durable"
            # Securing may have moved it further while the sync was under way.
            self.recovery_point = max(self.recovery_point, self._next_recovery_point)
        if sync.is_flush:
            self._flushed_end_offset = sync.end_offset
        if self._unpinning or self._closing:
            self._release_synced()
        self._files_in_sync = ()
        if held := self._unsynced.held_in_sync:
            self._unsynced.held_in_sync = []
            if self._end is None:
                self._write(held)

    def _write(self, held: Sequence[Held]) -> None:
        """Write to the segments what was held back from them."""
        try:
            for segment, entry in held:
                (segment.open_file or segment.file).write((entry.data,), entry.position)
        except OSError as error:
            raise self.segments.failed(error) from error

    def _release_synced(self) -> None:
        for file in self._unpinning:
            file.unpin()
        for file in self._closing:
            file.close()
        self._unpinning = self._closing = ()

    # Trimming

    def reconfigure(self, limits: SegmentLimits) -> None:
        self.segments.limits = limits

    def roll(self) -> None:
        active = self.segments.active
        if active is not None and active.size:
            assert self.durable_end_offset == self.end_offset, "a roll is for a durable log"
            self._group_commit.touch(self)
            self._begin_segment()

    def trim(self, start_offset: int) -> None:
        if start_offset > self.start_offset:
            assert start_offset <= self.durable_end_offset, "what is trimmed is durable"
            self.start_offset = start_offset
            self.segments.trim(start_offset)

    # The end

    def securing(self) -> Procedure[None]:
        # A sync under way is not waited for: what it covers is synced here too.
        if held := self._unsynced.take_all():
            self._write(held)
            self._is_dirty = True
        names, dirty = self._names, self._small_files.dirty
        is_synced = self.recovery_point == self.end_offset and not self._is_dirty
        if is_synced and not (names.dirty or dirty or self._files_in_sync):
            return
        active = self.segments.active
        if active is not None:
            self._index_files += active.flush_indexes(final=True)
        files = [*self._rolled_files, *self._index_files, *dirty.values(), *self._unflushed_files()]
        in_sync = self._files_in_sync
        # That sync may end meanwhile, and closes what it has covered.
        for file in in_sync:
            file.pin()
        try:
            yield Barrier([*in_sync, *files], names.both)
        finally:
            for file in in_sync:
                file.unpin()
        names.secured()
        self._files_in_sync = ()
        self.durable_end_offset = self.recovery_point = self.end_offset

    def as_closed(self) -> ClosedSegments | None:
        """Return what the next start need not find out, once all is durable; None: it has to."""
        return self.segments.as_closed() if self.recovery_point == self.end_offset else None

    def close(self) -> None:
        self._stop_committing()
        self._unsynced.take_all()
        self.attachments.close()
        for file in self._index_files:
            file.close()
        for file in self._rolled_files:
            file.unpin()
        self.segments.close()
