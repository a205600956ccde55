"""When a partition's snapshots are written, kept and deleted.

A snapshot is taken at the log's end and written once that end is durable, so a snapshot on disk
never tells of batches that a crash could take away. It is encoded as it is written, in pieces: a
partition may have a million producers. If several of ours wait, only the newest is written: it
tells what the others would. The newest two of our own files stay, and the newest that was synced.
Kafka's, one per segment roll, live as long as their segments. A log in a shared store has none of
Kafka's: its ten thousand segments would each have one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from logstore.disk.barriers import TURN, Procedure
from logstore.disk.pieces import Piece, whole
from logstore.partition.snapshot import SUFFIX, size_least, snapshot_pieces
from logstore.partition.snapshot_kafka import SUFFIX as KAFKA_SUFFIX
from logstore.partition.snapshot_kafka import kafka_snapshot_pieces
from logstore.partition.state import PartitionState, StateView
from logstore.segments.ledger import Ledger
from logstore.segments.names import segment_name
from logstore.sync.group_commit import LedgerClosed

_KEPT = 2
_LARGE_BYTES = 1 << 20
#: A snapshot is due after so many batches, however small they are: a replay takes 7 us for each.
_BATCHES = 4096
#: A large state waits for more batches: one for so many of its bytes. Encoding them takes 0.5 % of
#: the time of an append.
_BYTES_FOR_A_BATCH = 25
#: Reading the headers of a log up to this size takes no longer than reading a snapshot.
_SHORT_LOG_BYTES = 1 << 20


class _File(NamedTuple):
    """A snapshot as it goes to the disk."""

    name: str
    pieces: Iterator[Piece]
    is_synced: bool


class _Pending(NamedTuple):
    """The state of ours at an end of the log, and those of Kafka's where segments end, up to there,
    in their order."""

    own: StateView
    kafkas: list[StateView]
    is_synced: bool
    #: The lowest end at which a state was taken that this one replaces; its own, if there is none.
    first_offset: int

    def files(self) -> Iterator[_File]:
        """Yield the files, ours first: a crash must not leave Kafka's alone, which knows less."""
        name = snapshot_name(self.own.end_offset)
        yield _File(name, snapshot_pieces(self.own), self.is_synced)
        for view in self.kafkas:
            name = snapshot_name(view.end_offset, KAFKA_SUFFIX)
            yield _File(name, kafka_snapshot_pieces(view), is_synced=False)


def _first_offset(pending: _Pending) -> int:
    return pending.first_offset


def snapshot_name(end_offset: int, suffix: str = SUFFIX) -> str:
    """Return the file name of a snapshot: its end offset in twenty digits."""
    return segment_name(end_offset, suffix)


def snapshot_offsets(names: Iterable[str], suffix: str) -> list[int]:
    """Return the end offsets of the snapshots of one kind among the names of files, ascending."""
    return sorted(
        int(name.removesuffix(suffix))
        for name in names
        if name.endswith(suffix) and name.removesuffix(suffix).isdigit()
    )


class Snapshots:
    """The snapshots of one partition."""

    def __init__(self, ledger: Ledger, interval_bytes: int) -> None:
        self._ledger = ledger
        self._interval_bytes = interval_bytes
        #: The log counts down with every append, and takes a snapshot at zero.
        self.bytes_until_due = 0
        #: What a batch counts besides its own bytes.
        self.bytes_of_a_batch = 0
        self._begin_interval(0)
        #: The snapshots that are taken and not written yet.
        self.pending: list[_Pending] = []
        #: What is being written, its syncs beside the event loop. Others wait until it is done.
        self._writing: _Pending | None = None
        self._durable_end_offset = -1
        self._synced_at = -1
        self._written: list[int] = []
        self._written_for_kafka: list[int] = []
        #: Each resolves when the next snapshot is written.
        self._waiting: list[asyncio.Future[None]] = []

    def beginning(self, state: PartitionState, *, was_clean: bool) -> Procedure[None]:
        """Begin with what lies on the disk. All of `state` is durable.

        The snapshots that an unclean stop has left may be unsynced. If a segment were trimmed and
        power lost before the next snapshot, the state of that segment would be gone. So one is
        written at once where there are segments to trim, or some that are about to be deleted.
        """
        ledger = self._ledger
        names = ledger.attachments.names()
        self._written = snapshot_offsets(names, SUFFIX)
        self._written_for_kafka = snapshot_offsets(names, KAFKA_SUFFIX)
        if was_clean and not ledger.trimmed:
            self.resume(self._written, self._written_for_kafka)
        elif ledger.trimmed or len(ledger.segments.base_offsets) > 1:
            yield from self.securing(state)

    def replayed(self, batches: int, size_bytes: int) -> None:
        """Count what a start has read behind the newest snapshot: the next one is due so much
        sooner, and a process that is killed again and again reads no more each time."""
        self.bytes_until_due -= size_bytes + batches * self.bytes_of_a_batch

    @property
    def written(self) -> tuple[list[int], list[int]]:
        """The end offsets of the snapshots that lie beside the log: ours, and Kafka's."""
        return self._written, self._written_for_kafka

    def resume(self, written: list[int], written_for_kafka: list[int]) -> None:
        """Begin with what a clean stop has left."""
        self._written, self._written_for_kafka = written, written_for_kafka
        self._synced_at = next(reversed(written), -1)

    def take(
        self, state: PartitionState, *, for_kafka: bool = False, is_synced: bool = False
    ) -> None:
        """Take the state as it is now; `on_durable` writes it.

        `for_kafka`: Kafka's file too, at the end of a segment. `is_synced`: ours is synced.
        """
        self.pending.append(self._pending(state, for_kafka=for_kafka, is_synced=is_synced))

    def _pending(self, state: PartitionState, *, for_kafka: bool, is_synced: bool) -> _Pending:
        """Return the state as it is now. The next interval begins."""
        self._begin_interval(size_least(state))
        view = state.view()
        kafkas = [view] if for_kafka and self._ledger.is_read_by_kafka else []
        return _Pending(view, kafkas, is_synced, view.end_offset)

    def _begin_interval(self, state_bytes: int) -> None:
        if state_bytes > _LARGE_BYTES:
            # Encoding a large state as often would cost more than reading headers again.
            self._interval_bytes = max(self._interval_bytes, 16 * state_bytes)
        self.bytes_until_due = self._interval_bytes
        batches = max(_BATCHES, state_bytes // _BYTES_FOR_A_BATCH)
        self.bytes_of_a_batch = self._interval_bytes // batches

    def on_durable(self, end_offset: int) -> None:
        """Write what was taken at or below the durable end, unless something is being written.

        The event loop waits for no sync of theirs: `finish` does.
        """
        self._durable_end_offset = end_offset
        if self._writing is not None:
            return
        pending = self._take_until(end_offset)
        if pending is None:
            return
        self._writing = pending
        self._ledger.attachments.carry_out(
            self._replacing(pending),
            partial(self._is_writing, pending),
            partial(self._on_written, pending),
        )

    def _replacing(self, pending: _Pending) -> Procedure[None]:
        """Write the files. Of Kafka's there may be hundreds: others get their turn in between."""
        for number, file in enumerate(pending.files()):
            if number:
                yield TURN
            yield from self._ledger.attachments.replacing(
                file.name, file.pieces, sync=file.is_synced
            )

    def _on_written(self, pending: _Pending, failure: Exception | None) -> None:
        self._writing = None
        if failure is not None:
            # It waits still: what it alone tells of must not be deleted.
            self.pending.insert(0, pending)
            self._wake(failure)
            return
        self._complete(pending)
        self.on_durable(self._durable_end_offset)

    def _take_until(self, end_offset: int) -> _Pending | None:
        """Take all that wait at or below `end_offset`, as one."""
        count = bisect_right(self.pending, end_offset, key=_first_offset)
        if count == 0:
            return None
        taken, self.pending = self.pending[:count], self.pending[count:]
        return taken[-1]._replace(
            kafkas=[view for one in taken for view in one.kafkas],
            is_synced=any(one.is_synced for one in taken),
            first_offset=taken[0].first_offset,
        )

    def _is_writing(self, pending: _Pending) -> bool:
        return self._writing is pending

    async def until_written(self, end_offset: int) -> None:
        """Return when all that was taken at or below `end_offset` is written, or newer states are.

        All below `end_offset` is durable. Raises StorageFailure and LedgerClosed.
        """
        while (oldest := self._oldest()) is not None and oldest.first_offset <= end_offset:
            await self._next_written(end_offset)
        # Closed since it was taken: what waited then is not written.
        self._ledger.check_open()

    def _oldest(self) -> _Pending | None:
        return self._writing or next(iter(self.pending), None)

    def _next_written(self, end_offset: int) -> asyncio.Future[None]:
        written = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        self.on_durable(max(end_offset, self._durable_end_offset))
        return written

    def _wake(self, failure: Exception | None = None) -> None:
        waiting, self._waiting = self._waiting, []
        for written in waiting:
            if written.done():
                continue  # It was cancelled.
            if failure is None:
                written.set_result(None)
            else:
                written.set_exception(failure)

    def finish(self, end_offset: int) -> None:
        """Write at once what `until_written` would wait for. Blocks for the syncs.

        For callers that are about to delete what only these snapshots would tell of.
        """
        if self._writing is not None and self._writing.first_offset > end_offset:
            return  # And all that waits is newer.
        waiting = (self._writing, self._take_until(end_offset))
        self._writing = None
        for pending in waiting:
            if pending is not None:
                for file in pending.files():
                    data = whole(file.pieces)
                    self._ledger.attachments.write(file.name, data, sync=file.is_synced)
                self._complete(pending)
        self.on_durable(self._durable_end_offset)

    def abandon(self) -> None:
        """Write nothing more: the ledger is being closed, and its name may become another's."""
        self._writing = None
        self.pending.clear()
        self._wake(LedgerClosed("closed: no snapshot is written"))

    def are_needed(self, state: PartitionState) -> bool:
        """Whether a snapshot tells the next start more than the log's headers, or sooner."""
        producers = state.producers
        is_plain = not (producers or producers.has_forgotten or state.transactions.has_any)
        return not is_plain or self._ledger.segments.size_bytes > _SHORT_LOG_BYTES

    def securing(self, state: PartitionState) -> Procedure[None]:
        """Write a snapshot of `state`, and Kafka's beside it, unless both are on the disk.

        The state is that of the log's end. The first barrier makes the log durable, before the
        snapshot has its name.
        """
        # The snapshot of the log's end replaces those that were taken before and are still waiting.
        self.pending.clear()
        ledger, offset = self._ledger, state.end_offset
        self.finish(offset)
        is_told = not ledger.is_read_by_kafka or offset in self._written_for_kafka[-1:]
        if self._synced_at == offset and is_told:
            return
        pending = self._pending(state, for_kafka=True, is_synced=True)
        yield from self._replacing(pending)
        self._complete(pending)

    def _complete(self, pending: _Pending) -> None:
        """Account for files that are written, and delete ours that these replace."""
        ledger, offset = self._ledger, pending.own.end_offset
        for view in pending.kafkas:
            if view.end_offset not in self._written_for_kafka[-1:]:
                self._written_for_kafka.append(view.end_offset)
        if pending.is_synced:
            self._synced_at = offset
        if offset not in self._written:
            self._written.append(offset)
        kept = {*self._written[-_KEPT:], self._synced_at}
        # The newest synced one stays: the unsynced ones may be torn after a power loss.
        for old in [one for one in self._written if one not in kept]:
            ledger.attachments.delete(snapshot_name(old))
            self._written.remove(old)
        self._wake()

    def forget_segments(self, base_offsets: Sequence[int], end_offset: int) -> None:
        """Delete Kafka's snapshots below `end_offset` at which no segment begins any more."""
        bases = set(base_offsets)
        end = bisect_left(self._written_for_kafka, end_offset)
        kept = [offset for offset in self._written_for_kafka[:end] if offset in bases]
        self._discard_kafkas({*self._written_for_kafka[:end]}.difference(kept))
        self._written_for_kafka[:end] = kept

    def prune(self, start_offset: int) -> None:
        """Delete Kafka's snapshots of segments that are gone."""
        gone = bisect_left(self._written_for_kafka, start_offset)
        self._discard_kafkas(self._written_for_kafka[:gone])
        del self._written_for_kafka[:gone]

    def _discard_kafkas(self, offsets: Iterable[int]) -> None:
        self._ledger.attachments.discard(snapshot_name(one, KAFKA_SUFFIX) for one in offsets)
