"""One partition's log in a shared store.

Appends wait in memory for the node's next commit, which writes what all its logs have. The newest
batches stay in memory, within a bound over all logs. Older ones are read from the store.

A log is a sequence of chunks. A chunk holds batches of one commit, about a MiB at most. Each
*sealed* segment has a row; the commit that writes the first batch behind the segment writes the
row. The active segment begins where the last sealed one ends, and has no row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from logstore.disk.barriers import TURN, Procedure
from logstore.disk.files import Buffer
from logstore.remote.commit_store import (
    Changes,
    Chunk,
    LogKey,
    LogStart,
    Move,
    StoredLog,
    StoredSegment,
    Swap,
)
from logstore.remote.hot_batches import BATCH_BYTES, HotBatches, batches_of
from logstore.remote.memory_tail import MemoryTail
from logstore.remote.remote_attachments import RemoteAttachments
from logstore.remote.remote_batches import RemoteBatches
from logstore.remote.remote_segments import RemoteSegments
from logstore.remote.segment_list import SegmentList
from logstore.remote.store_reads import StoreReads
from logstore.segments.ledger import LedgerFenced, SegmentLimits
from logstore.segments.names import aborted_name
from logstore.sync.group_commit import CommittedLedger, GroupCommit
from logstore.sync.sync_executors import Sync
from wire.records import BatchHeader

#: The most bytes of a chunk; one batch may be larger.
CHUNK_BYTES = 1 << 20
#: The attachment that says below which offset all chunks were moved to objects.
MOVED_TO = "moved-to"
#: The attachment with the highest `moved-to` before the cleaner brought chunks back.
MOVED_ONCE = "moved-once"
_OFFSET_BYTES = 8
#: How many bytes of a log that is opened are looked through in one turn of the event loop: four
#: milliseconds where batches are small.
_TURN_BYTES = 256 << 10


class _PendingSwap(NamedTuple):
    """A replacement of segments that the cleaner waits for."""

    swap: Swap
    aborted: bytes
    on_swapped: Callable[[], None]
    done: asyncio.Future[bool]


class _PendingMove(NamedTuple):
    """What `RemoteLedger.move` waits for."""

    move: Move
    replacements: int
    done: asyncio.Future[bool]


class RemoteSync(Sync):
    """What one log writes by one commit."""

    def __init__(
        self,
        end_offset: int,
        changes: Changes,
        swap: _PendingSwap | None = None,
        move: _PendingMove | None = None,
        *,
        memory_bytes: int = 0,
    ) -> None:
        """`memory_bytes`: how much memory the batches of `changes` take."""
        super().__init__(end_offset)
        self.changes = changes
        self.pending_swap = swap
        self.pending_move = move
        self.memory_bytes = memory_bytes


class RemoteLedger(CommittedLedger):
    """A log that one node leads. Perform `opening` before anything else, nothing after `close`."""

    #: Always empty: the commit that makes a roll durable has the roll's snapshot too, or comes
    #: before any trim up to the roll.
    trimmed = ()
    #: A commit takes some of the large logs, and leaves the others to the next commit.
    is_synced_with_others = False
    is_read_by_kafka = False

    def __init__(
        self,
        key: LogKey,
        group_commit: GroupCommit,
        reads: StoreReads,
        tail: MemoryTail,
        limits: SegmentLimits,
        stored: StoredLog,
        *,
        is_wholly_loaded: bool = False,
    ) -> None:
        """`stored` is what was loaded. `is_wholly_loaded`: it is the whole log of a coordinator,
        and stays in memory until the replay has read it."""
        super().__init__(group_commit)
        self._group_commit = group_commit
        self.key = key
        self._reads = reads
        self._tail = tail
        self._limits = limits
        self._stored = stored
        self._is_wholly_loaded = is_wholly_loaded
        self._hot = HotBatches(0)
        self._known = SegmentList(key)
        self.batches = RemoteBatches(self._hot, self._known, self._read_store, self._read_in_time)
        self.segments = RemoteSegments(key, self._known, self.batches, self._perform_swap)
        self.attachments = RemoteAttachments(
            key,
            stored.attachments,
            partial(group_commit.touch, self, may_wait=True),
            group_commit.carry_out,
        )
        # For the next commit.
        self._batches: list[bytes] = []
        self._batches_bytes = 0
        self._batches_offset = 0  # where they begin
        self._pending_bytes = 0  # of all of these, and of `_chunks`
        self._pending_memory_bytes = 0
        self._has_atomic = False
        self._chunks: list[Chunk] = []
        self._sealed: list[StoredSegment] = []
        self._start: LogStart | None = None
        self._stored_from = 0  # nothing of the log begins below, in the store
        self._swap: _PendingSwap | None = None
        #: The swap in the commit under way. Reads of the store wait for the end of that commit.
        self._swapping: _PendingSwap | None = None
        self._move: _PendingMove | None = None
        self._moving: _PendingMove | None = None
        #: How many segments the cleaner has replaced: chunks that were read before may be gone.
        self.replacements = 0
        #: Of this opening of the log: another node may replace segments before the next one.
        self._opening = object()

    # Opening and closing.

    @property
    def recovery_point(self) -> int:
        return self.durable_end_offset

    def opening(self, epoch: int) -> Procedure[None]:
        stored, self._stored = self._stored, StoredLog()
        start_offset, segments = stored.start_offset, stored.segments
        if segments:
            active_base = segments[-1].end_offset
        else:
            active_base = start_offset if stored.first_offset is None else stored.first_offset
        bases = [one.base_offset for one in segments]
        kept = [one for one in segments if one.end_offset > start_offset]
        first_offset = kept[0].base_offset if kept else active_base
        self._known.begin(kept, active_base)
        loaded = yield from self._taking(stored.chunks, first_offset, active_base)
        hot_from, end_offset = first_offset, max(start_offset, first_offset, active_base)
        if loaded is not None:
            first, last = loaded
            if last.partition_leader_epoch > epoch:
                raise LedgerFenced(
                    f"epoch {epoch}, but epoch {last.partition_leader_epoch} has written"
                )
            if stored.chunks[0].base_offset != stored.first_offset:
                hot_from = max(first_offset, first.base_offset)
            end_offset = max(end_offset, last.next_offset)
        self._hot.first_offset = hot_from
        # What a node before this one had yet to remove counts too.
        begins = [one for one in (stored.first_offset, *bases[:1]) if one is not None]
        self._stored_from = min(begins, default=0)
        self.start_offset = max(start_offset, first_offset)
        self.end_offset = self.durable_end_offset = self._begun_end_offset = end_offset

    def _taking(
        self, chunks: Sequence[Chunk], first_offset: int, active_base: int
    ) -> Procedure[tuple[BatchHeader, BatchHeader] | None]:
        """Take the batches from `first_offset` on into memory; return the first and last header.

        The barriers name nothing: others go on there, since a log may have a million batches.
        """
        first = last = None
        turn_bytes = 0
        for chunk in chunks:
            for header, batch in batches_of(chunk.data):
                if header.next_offset > first_offset:
                    first, last = first or header, header
                    self._hot.append(batch, header.base_offset)
                    if header.base_offset >= active_base:
                        self._known.add(header)
            turn_bytes += len(chunk.data)
            if turn_bytes >= _TURN_BYTES:
                turn_bytes = 0
                yield TURN
        return None if first is None or last is None else (first, last)

    def opened(self) -> None:
        if self._is_wholly_loaded:
            self._hot.pin()
        if memory_bytes := self._hot.memory_bytes:
            self._tail.add(self._hot, self.end_offset, memory_bytes)

    def securing(self) -> Procedure[None]:
        # The directory waits for the node's next commit, which makes everything durable.
        yield from ()

    def close(self) -> None:
        for pending in self._pending():
            # The commit under way may still carry out its move: that caller gets LedgerClosed.
            if pending is not self._moving:
                pending.done.set_result(False)
        self._stop_committing()
        self.attachments.close()
        self._hot.forget_below(self.end_offset)
        # These lead back here: cycles, which reference counts cannot free.
        self.batches.read_store = self.batches.read_in_time = partial(self._reads.read, self.key)
        self.segments.perform_swap = _swap_nothing

    def _pending(self) -> list[_PendingSwap | _PendingMove]:
        """Return the swaps and moves that wait for a commit."""
        known = (self._swap, self._swapping, self._move, self._moving)
        return [one for one in known if one is not None and not one.done.done()]

    # Appending.

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
        assert header.size_bytes == size_bytes, "one whole batch"
        self._group_commit.touch(self, may_wait=may_wait)
        known = self._known
        if known.is_full_for(header, self._limits):
            self._begin_segment()
        if self._batches_bytes + size_bytes > CHUNK_BYTES:
            self._end_chunk()
        if not self._batches:
            self._batches_offset = header.base_offset
        # A copy: the client's buffer is used again once the request is answered.
        data = bytes(batch)
        self._hot.append(data, header.base_offset)
        self._batches.append(data)
        self._batches_bytes += size_bytes
        self._pending_bytes += size_bytes
        self._pending_memory_bytes += size_bytes + BATCH_BYTES
        if is_atomic:
            self._has_atomic = True
        known.add(header)
        self.end_offset = header.next_offset

    def _begin_segment(self) -> None:
        self.on_roll(self.end_offset)
        self._end_chunk()
        self._sealed.append(self._known.seal())

    def _end_chunk(self) -> None:
        batches = self._batches
        if batches:
            data = batches[0] if len(batches) == 1 else b"".join(batches)
            self._chunks.append(Chunk(self.key, self._batches_offset, self.end_offset, data))
            self._batches, self._batches_bytes = [], 0

    def flush(self) -> bool:
        return False

    def roll(self) -> None:
        if self._known.active_bytes:
            self._group_commit.touch(self)
            self._begin_segment()

    def trim(self, start_offset: int) -> None:
        if start_offset > self.start_offset:
            assert start_offset <= self.durable_end_offset, "what is trimmed is durable"
            self.start_offset = start_offset
            kept_from = self._known.trim(self._whole_below(start_offset))
            self._hot.forget_below(kept_from)
            self._sealed = [one for one in self._sealed if one.end_offset > kept_from]
            self._note_start(start_offset, kept_from)
            self._group_commit.touch(self, may_wait=True)

    def _whole_below(self, start_offset: int) -> int:
        """Return up to where segments may go in a trim.

        The commit under way may merge segments. What it merges goes as a whole, or stays: the store
        has it as one segment already, with one aborted index under the name of the first.
        """
        if self._swapping is not None:
            segment = self._swapping.swap.segment
            if segment.base_offset < start_offset < segment.end_offset:
                return segment.base_offset
        return start_offset

    def want_start(self, start_offset: int) -> None:
        """Let the next commit write a new start of the log, ahead of the call of `trim`."""
        self._note_start(start_offset, 0)
        self._group_commit.touch(self)

    def _note_start(self, start_offset: int, kept_from: int) -> None:
        if self._start is not None:
            start_offset = max(start_offset, self._start.start_offset)
            kept_from = max(kept_from, self._start.kept_from)
        self._start = LogStart(self.key, start_offset, kept_from, self._stored_from)

    def reconfigure(self, limits: SegmentLimits) -> None:
        self._limits = limits

    @property
    def deferrable_bytes(self) -> int:
        """How many bytes the next commit may leave to a later one.

        0 for a coordinator's log: the next commit may hold the markers of its decisions.
        """
        return 0 if self._has_atomic or self._is_wholly_loaded else self._pending_bytes

    # Becoming durable.

    def begin_sync(self) -> Sync:
        self._end_chunk()
        self._begun_end_offset = self.end_offset
        swap = self._begin_swap()
        move = self._begin_move()
        changes = Changes(
            self._chunks,
            self._sealed,
            () if self._start is None else (self._start,),
            self.attachments.take_changes(),
            () if swap is None else (swap.swap,),
            () if move is None else (move.move,),
        )
        if self._start is not None:
            self._stored_from = max(self._stored_from, self._start.kept_from)
        self._chunks, self._sealed, self._start = [], [], None
        memory_bytes, self._pending_memory_bytes = self._pending_memory_bytes, 0
        self._pending_bytes, self._has_atomic = 0, False
        return RemoteSync(self.end_offset, changes, swap, move, memory_bytes=memory_bytes)

    def complete_sync(self, sync: Sync) -> None:
        assert isinstance(sync, RemoteSync)
        if self._end is not None:
            return
        if sync.pending_swap is not None:
            self._end_swap(sync.pending_swap)
        if sync.pending_move is not None:
            self._moving = None
            sync.pending_move.done.set_result(True)
        if sync.memory_bytes:
            self._tail.add(self._hot, sync.end_offset, sync.memory_bytes)

    def fail_waiters(self, failure: Exception) -> None:
        super().fail_waiters(failure)
        for pending in self._pending():
            pending.done.set_exception(failure)
        self._swap = self._swapping = self._move = self._moving = None

    # Reading the store, and what the cleaner replaces there.

    async def _read_store(self, offset: int, max_bytes: int, end_offset: int) -> Sequence[Chunk]:
        chunks = await self._reads.read(self.key, offset, max_bytes, end_offset)
        # The commit under way may have replaced these chunks already. The caller must not go on
        # before this ledger's segments say so too.
        while (swapping := self._swapping) is not None:
            await asyncio.wait((swapping.done,))
        return chunks

    async def _read_in_time(self, offset: int, max_bytes: int, end_offset: int) -> Sequence[Chunk]:
        place = (self._opening, self.replacements, offset)
        begin = partial(self._read_store, offset, max_bytes, end_offset)
        return await self._reads.in_time(place, max_bytes, begin)

    async def _perform_swap(
        self, swap: Swap, aborted: bytes, on_swapped: Callable[[], None]
    ) -> bool:
        assert self._swap is None and self._swapping is None, "one cleaner for each log"
        self._group_commit.touch(self)
        loop = asyncio.get_running_loop()
        self._swap = _PendingSwap(swap, aborted, on_swapped, loop.create_future())
        return await _outcome(self._swap)

    def _begin_swap(self) -> _PendingSwap | None:
        pending, self._swap = self._swap, None
        if pending is None:
            return None
        segment = pending.swap.segment
        covered = self._known.covered_by(segment)
        if not covered or covered[0] != segment.base_offset or self._hot.is_pinned:
            # Retention has removed the segments, or the log is about to be replayed.
            pending.done.set_result(False)
            return None
        for base_offset in covered:
            self.attachments.delete(aborted_name(base_offset))
        self.attachments.write(aborted_name(covered[0]), pending.aborted)
        if covered[0] < self.moved_to:
            # These batches were in objects, so `bytes_never_moved` leaves them out.
            if self.moved_to > self._offset_in(MOVED_ONCE):
                self.attachments.write(MOVED_ONCE, self.attachments.read(MOVED_TO) or b"")
            self._note_moved_to(covered[0])
        self._swapping = pending
        return pending

    def _end_swap(self, pending: _PendingSwap) -> None:
        self._swapping = None
        self.replacements += 1
        segment = pending.swap.segment
        is_there = bool(self._known.covered_by(segment))
        if is_there:
            self._known.replace(segment)
            # The batches that were replaced may still be in memory.
            self._hot.forget_below(segment.end_offset)
            pending.on_swapped()
        pending.done.set_result(is_there)

    # What moves to objects.

    @property
    def moved_to(self) -> int:
        """The offset below which all chunks are in objects. Later chunks may be too."""
        return self._offset_in(MOVED_TO)

    @property
    def bytes_in_rows(self) -> int:
        """The bytes that are not in objects, or up to a segment more."""
        return self._known.bytes_since(self.moved_to)

    @property
    def bytes_never_moved(self) -> int:
        """`bytes_in_rows` without what the cleaner has brought back from objects."""
        return self._known.bytes_since(max(self.moved_to, self._offset_in(MOVED_ONCE)))

    def _offset_in(self, name: str) -> int:
        return int.from_bytes(self.attachments.read(name) or b"", "big")

    def _note_moved_to(self, offset: int) -> None:
        self.attachments.write(MOVED_TO, offset.to_bytes(_OFFSET_BYTES, "big"))

    async def move(self, move: Move, replacements: int) -> bool:
        """Let the next commit replace chunks by others with the same batches.

        Returns False if nothing has happened: some of the batches are gone, or the cleaner has
        replaced a segment since `replacements` was read. Raises StorageFailure. Raises LedgerClosed
        if the log was closed while the commit was under way: the chunks may have moved.
        """
        assert self._move is None and self._moving is None, "one move at a time for each log"
        self._group_commit.touch(self)
        loop = asyncio.get_running_loop()
        self._move = _PendingMove(move, replacements, loop.create_future())
        return await _outcome(self._move)

    def _begin_move(self) -> _PendingMove | None:
        pending, self._move = self._move, None
        if pending is None:
            return None
        # A swap may have replaced these batches: in a commit that has returned since they were
        # read, in one that has not returned yet, or in this one.
        is_replaced = self._swapping is not None or pending.replacements != self.replacements
        if is_replaced or pending.move.base_offset < self._known.base_offsets[0]:
            pending.done.set_result(False)
            return None
        self._note_moved_to(pending.move.end_offset)
        self._moving = pending
        return pending


async def _outcome(one: _PendingSwap | _PendingMove) -> bool:
    """Return what the commit of a swap or a move has come to. Raises StorageFailure, LedgerClosed.

    A cancelled caller takes nothing back, since the commit may be under way. It does not hear of a
    failure either. Group commit tells of that one, so it is not an error of the event loop.
    """
    done = one.done
    done.add_done_callback(asyncio.Future.exception)
    try:
        return await asyncio.shield(done)
    finally:
        del done, one  # It may have an error, whose traceback leads here: a cycle.


async def _swap_nothing(_swap: Swap, _aborted: bytes, _on_swapped: Callable[[], None]) -> bool:
    """Leave a closed log as it is: another node may write to it."""
    return False
