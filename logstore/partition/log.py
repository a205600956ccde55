"""One partition: check, append, fold, durable, visible, answer.

Owns what a partition promises to its writers. A `Ledger` keeps the bytes; a `LogReader` owns what
readers see.

- Nothing invalid is written: a refusal (`KafkaError`) leaves log and state as they were.
- The live state equals the state replayed from the log, always (`state`).

Everything runs on the event loop's thread; only `durable` and `secure_state` wait. A log does not
know whether a transaction is ongoing at its coordinator: ask that between `check` and `append`.
Source: KIP-98, KIP-101, KIP-890.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID

from logstore.disk.barriers import Procedure, in_step
from logstore.partition.client_batch import (
    NO_APPEND_TIME,
    WHOLE,
    Appended,
    CheckedBatch,
    Effort,
    appended_before,
    check_batch,
)
from logstore.partition.leader_epochs import EpochFiles
from logstore.partition.log_config import LogConfig
from logstore.partition.producer_state import Producers
from logstore.partition.reader import LogReader
from logstore.partition.snapshot import encode_snapshot, size_least
from logstore.partition.snapshots import Snapshots
from logstore.partition.state import PartitionState
from logstore.partition.state_recovery import STATE_BYTES_MAX, ClosedLog, recovering
from logstore.partition.transaction_buffer import TransactionBuffer, TransactionMarker
from logstore.partition.trims import deletable_before, delete_before
from logstore.segments.aborted_index import AbortedEntry
from logstore.segments.closed_segments import ClosedSegments
from logstore.segments.ledger import Ledger
from logstore.segments.names import aborted_name
from logstore.sync.group_commit import LedgerClosed
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import (
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    EncodedRecords,
    SimpleRecord,
    TimestampType,
    packed_batch,
    placed,
    set_log_append_time,
    unplaced_marker,
)
from wire.types import INT32_MAX


class PartitionLog:
    """The log of one partition. Perform `opening` before anything else."""

    def __init__(
        self,
        topic: str,
        partition: int,
        ledger: Ledger,
        config: LogConfig,
        *,
        steady_ms: Callable[[], int],
        leader_epoch: int = 0,
        topic_id: UUID | None = None,
        on_recovery_point: Callable[[PartitionLog], None] | None = None,
    ) -> None:
        """`on_recovery_point` is called with this log when its recovery point has moved.

        `steady_ms` is a clock in ms that is never set: by it producers fall silent.
        """
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.leader_epoch = leader_epoch
        #: What keeps the bytes.
        self.ledger = ledger
        #: What the partition shows: its bounds, and batches below them.
        self.reader = LogReader(topic, partition, ledger)
        #: Compaction goes on from here; everything below has been cleaned once.
        self.first_dirty_offset = 0
        self._on_recovery_point = on_recovery_point
        self._recovery_point_seen = 0
        self._snapshots = Snapshots(ledger, config.snapshot_interval_bytes)
        self._steady_ms = steady_ms
        self._epoch_files = EpochFiles(ledger, topic_id)

    def _take_state(self, state: PartitionState) -> None:
        #: Everything folded from the log up to its end, durable or not.
        self.state = state
        self.producers: Producers = state.producers
        self.transactions: TransactionBuffer = state.transactions

    def opening(
        self,
        *,
        was_clean: bool = False,
        is_locked: bool = False,
        closed: ClosedLog | None = None,
    ) -> Procedure[None]:
        """Recover what is stored; then everything in it is durable and visible.

        `was_clean`: the log was closed cleanly the last time. `closed`: how the log was closed; the
        ledger has been told already. `is_locked`: no other process can write, so the leader epoch
        is raised to that of the last batch. Raises LedgerFenced for too low an epoch otherwise.
        """
        ledger = self.ledger
        steady_ms = self._steady_ms()
        yield from ledger.opening(INT32_MAX if is_locked else self.leader_epoch)
        state = yield from recovering(
            ledger, self._snapshots, steady_ms, was_clean=was_clean, closed=closed
        )
        assert state.end_offset == ledger.end_offset, "the state is not that of the log's end"
        self._take_state(state)
        self.leader_epoch = max(self.leader_epoch, state.leader_epochs.latest)
        stored_id = None if closed is None else closed.topic_id
        self._epoch_files.begin(state.leader_epochs.latest, stored_id)
        self._recovery_point_seen = ledger.recovery_point
        self.reader.begin(state)
        ledger.on_durable = self._on_durable
        ledger.on_roll = self._on_roll
        if ledger.end_offset > ledger.start_offset and not was_clean:
            self._epoch_files.mend(state.leader_epochs)
        ledger.opened()

    def reconfigure(self, config: LogConfig) -> None:
        """Obey `config` from the next batch on; what is stored stays as it is."""
        self.config = config
        self.ledger.reconfigure(config)

    # Where the log is.

    @property
    def log_start_offset(self) -> int:
        return self.ledger.start_offset

    @property
    def log_end_offset(self) -> int:
        return self.state.end_offset

    @property
    def high_watermark(self) -> int:
        return self.reader.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.reader.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """Where recovery of the bytes may begin."""
        return self.ledger.recovery_point

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches stored."""
        return self.ledger.segments.size_bytes

    @property
    def makes_files(self) -> bool:
        """Whether the next append makes or opens files: it takes as long as twenty others."""
        return self.ledger.has_files and self._epoch_files.leader_epoch != self.leader_epoch

    @property
    def is_gone(self) -> bool:
        """Whether it is deleted or led elsewhere: the log then refuses whatever is asked."""
        return self.reader.is_gone

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (epoch, exclusive end offset) of the largest epoch not above `leader_epoch`.

        The leader's own epoch counts from the opening of the partition, even without a batch.
        Returns (-1, -1) for an epoch above that one. Source: KIP-320.
        """
        epochs = self.state.leader_epochs.with_leader(self.leader_epoch, self.state.end_offset)
        return epochs.end_offset_for(leader_epoch, self.reader.high_watermark)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record at `offset`; at the log's end, the leader's own."""
        if offset >= self.state.end_offset:
            return self.leader_epoch
        return self.state.leader_epochs.epoch_at(offset)

    # Writing.

    def check(
        self, batch: bytearray | memoryview, now_ms: int, effort: Effort = WHOLE
    ) -> CheckedBatch:
        """Return a client's batch for `append`. Changes nothing; any thread may call it.

        Raises KafkaError for what can never be appended, and TakesLong: as `check_batch`.
        """
        return check_batch(batch, self.config, now_ms, effort)

    def append(self, checked: CheckedBatch) -> Appended:
        """Append a client's batch; its base offset and leader epoch are written in place.

        Raises KafkaError as `Producers.check` does, INVALID_TXN_STATE for a plain batch of a
        producer that has a transaction open here, COORDINATOR_LOAD_IN_PROGRESS where it has one
        of an earlier epoch, and NoRoom; then nothing is changed. Producers are checked here, not in
        `check`: a refusal by the transaction's coordinator comes before.
        """
        batch, header, now_ms = checked
        if header.producer_id >= 0:
            duplicate = self.producers.check(header)
            if duplicate is not None:
                return appended_before(duplicate, self.ledger.start_offset)
            if header.attributes & ATTRIBUTE_TRANSACTIONAL:
                self.transactions.check_epoch(header.producer_id, header.producer_epoch)
            else:
                self.transactions.check_plain(header.producer_id)
        # The batch's place is written into its bytes; a request's own buffer may be written to.
        if isinstance(batch, memoryview) and batch.readonly:
            batch = bytearray(batch)
        append_time_ms = NO_APPEND_TIME
        if self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            set_log_append_time(batch, now_ms)
            header, append_time_ms = BatchHeader.parse(batch), now_ms
        header = placed(batch, header, self.state.end_offset, self.leader_epoch)
        return self._append(batch, header, append_time_ms, is_refusable=True)

    def append_records(
        self,
        records: Sequence[SimpleRecord] | EncodedRecords,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        is_transactional: bool = False,
        may_wait: bool = False,
        is_atomic: bool = False,
        is_bounded: bool = True,
    ) -> Appended:
        """Append a coordinator's own records as one batch, which carries no sequence.

        `may_wait`, `is_atomic`: as `Ledger.append`. `is_bounded`: by the topic's
        max.message.bytes, which may have become less since the coordinator asked.

        Raises INVALID_PRODUCER_EPOCH for a zombie's epoch, COORDINATOR_LOAD_IN_PROGRESS where data
        of an earlier one is open, MESSAGE_TOO_LARGE.
        """
        if producer_id >= 0:
            self.producers.check_epoch(producer_id, producer_epoch)
            if is_transactional:
                self.transactions.check_epoch(producer_id, producer_epoch)
            else:
                self.transactions.check_plain(producer_id)
        batch, header = packed_batch(
            records,
            base_offset=self.state.end_offset,
            leader_epoch=self.leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=is_transactional,
        )
        if is_bounded and len(batch) > self.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"batch of {len(batch)} bytes, at most {self.config.max_message_bytes}",
            )
        return self._append(batch, header, NO_APPEND_TIME, may_wait=may_wait, is_atomic=is_atomic)

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> Appended:
        """Append the marker that ends the producer's transaction here, or an empty one.

        Atomic, as `Ledger.append` has it, with what its decision has appended in the same step.
        Visible only once it is durable. Raises INVALID_PRODUCER_EPOCH for an older epoch than the
        data's, TRANSACTION_COORDINATOR_FENCED for an older coordinator than the last one's.
        """
        producer_id, producer_epoch, coordinator_epoch, commit, transaction_version = marker
        # Only the rule of version 2 needs to know.
        is_open = transaction_version >= 2 and self.transactions.is_open(producer_id)
        self.producers.check_marker(marker, is_open=is_open)
        made, header = unplaced_marker(
            producer_id, producer_epoch, coordinator_epoch, commit, now_ms
        )
        batch = bytearray(made)
        header = placed(batch, header, self.state.end_offset, self.leader_epoch)
        return self._append(batch, header, NO_APPEND_TIME, is_atomic=True, marker=marker)

    def _append(
        self,
        batch: bytearray | memoryview,
        header: BatchHeader,
        append_time_ms: int,
        *,
        may_wait: bool = False,
        is_atomic: bool = False,
        is_refusable: bool = False,
        marker: TransactionMarker | None = None,
    ) -> Appended:
        """Append a batch that was placed at the log's end. `marker`: the marker in it, if any."""
        # The directory's name may belong to the next partition of that name by now.
        if self.reader.is_gone:
            raise self.reader.gone
        state, ledger = self.state, self.ledger
        # Kafka's tools read in the epoch file at which offset each leader's batches begin.
        if self._epoch_files.leader_epoch != self.leader_epoch:
            self._epoch_files.begin_epoch(state.leader_epochs, self.leader_epoch, state.end_offset)
        # Not the wall clock: a clock set a day ahead would forget every producer at once. A batch
        # without a producer asks for no time: no producer is heard of by it.
        steady_ms = self._steady_ms() if header.producer_id >= 0 else 0
        ledger.append(
            batch, header, may_wait=may_wait, is_atomic=is_atomic, is_refusable=is_refusable
        )
        if marker is None:
            state.on_batch(header, steady_ms)
        else:
            aborted = state.on_marker(
                header, marker.coordinator_epoch, steady_ms, commit=marker.commit
            )
            if aborted is not None:
                self._note_aborted(aborted)
        # The ledger asserts that a batch begins at its end, so state and ledger end alike.
        end_offset = state.end_offset
        snapshots = self._snapshots
        snapshots.bytes_until_due -= header.batch_length + snapshots.bytes_of_a_batch
        if snapshots.bytes_until_due <= 0:
            snapshots.take(state)
        first, start = header.base_offset, ledger.start_offset
        # Not the constructor, which is Python: every batch passes here.
        place = (first, end_offset - 1, end_offset, append_time_ms, start, False)
        return tuple.__new__(Appended, place)

    def _note_aborted(self, entry: AbortedEntry) -> None:
        """Write down a transaction that the last marker has aborted. The entry is durable in the
        same step as the marker, so the file is whole below every durable end."""
        name = aborted_name(self.ledger.segments.base_offsets[-1])
        self.ledger.attachments.append(name, entry.encode())

    def expire_producers(self, producer_ids: Iterable[int], steady_ms: int) -> list[int]:
        """Forget those of the producers that were silent for `producer.id.expiration.ms`. Returns
        their ids.

        A producer with an open transaction stays.
        """
        silent_since_ms = steady_ms - self.config.producer_id_expiration_ms
        open_ids = self.transactions.open_producer_ids()
        return self.producers.expire(producer_ids, silent_since_ms, open_ids)

    # Becoming durable.

    async def durable(self, end_offset: int) -> None:
        """Return once everything below `end_offset` is durable and visible.

        Raises StorageFailure, and PartitionGone if the partition goes meanwhile.
        """
        await self._wait(self.ledger.until_durable, end_offset)

    async def ordered(self, end_offset: int) -> None:
        """Return once everything below `end_offset` is ordered. Raises as `durable`.

        What any node writes from then on survives no crash without it (`Ledger.is_ordered`).
        """
        await self._wait(self.ledger.until_ordered, end_offset)

    async def _wait(self, until: Callable[[int], Awaitable[None] | None], end_offset: int) -> None:
        waiter: Awaitable[None] | None = None
        try:
            waiter = until(end_offset)
            if waiter is not None:
                await waiter
        except LedgerClosed:
            if self.reader.is_gone:
                raise self.reader.gone from None
            raise
        finally:
            # The traceback of an error leads here. With the future, which has the error, this frame
            # would be a cycle.
            waiter = None

    def _on_durable(self, end_offset: int) -> None:
        self.reader.advance(end_offset)
        # A snapshot has its name only now: it must not tell of batches that a crash could take.
        if self._snapshots.pending:
            self._snapshots.on_durable(end_offset)
        recovery_point = self.ledger.recovery_point
        if recovery_point != self._recovery_point_seen:
            self._recovery_point_seen = recovery_point
            if self._on_recovery_point is not None:
                self._on_recovery_point(self)

    def _on_roll(self, _base_offset: int) -> None:
        self._epoch_files.on_roll(self.state.leader_epochs)
        # The segment that ends here will be trimmed one day: only this snapshot tells of it then.
        self._snapshots.take(self.state, for_kafka=True, is_synced=True)
        self._snapshots.on_durable(self.reader.high_watermark)

    # Giving up what is old.

    def deletable_before(self, offset: int) -> int:
        """Return the start that DeleteRecords before `offset` (-1: the high watermark) asks for.

        An offset that is below the start already changes nothing. Raises OFFSET_OUT_OF_RANGE above
        the high watermark.
        """
        wanted = deletable_before(offset, self.reader.high_watermark)
        return max(wanted, self.ledger.start_offset)

    def roll_at(self, start_offset: int) -> None:
        """Begin a new segment if the log ends at `start_offset`, so that `advance_start` deletes
        all of it: a trim takes whole segments, never the active one."""
        if start_offset == self.state.end_offset and not self.reader.is_gone:
            self.ledger.roll()

    async def until_told(self, start_offset: int) -> None:
        """Return once snapshots tell what the segments below `start_offset` do, and the segment is
        durable that `roll_at` has begun. Raises as `durable`."""
        await self._wait(self._snapshots.until_written, start_offset)

    def advance_start(self, start_offset: int) -> None:
        """Begin at `start_offset`, already durable as the start; delete what lies below.

        Blocks for the snapshots for which `until_told` was not awaited.
        """
        if start_offset <= self.ledger.start_offset:
            return
        if delete_before(self.ledger, self.state, self._snapshots, start_offset):
            self._epoch_files.write(self.state.leader_epochs)
        self.reader.on_new_start()

    # Being cleaned.

    async def secure_state(self) -> None:
        """Make a snapshot durable, and every batch in its own segment. Raises as `durable`."""
        if self.reader.is_gone:
            raise self.reader.gone
        end_offset = self.state.end_offset
        self._snapshots.take(self.state, is_synced=True)
        await self.durable(end_offset)
        await self._wait(self._snapshots.until_written, end_offset)
        await self.ledger.settled()

    def on_replaced(self, first_offset: int, end_offset: int, aborted: list[AbortedEntry]) -> None:
        """One cleaned segment holds [first_offset, end_offset) from this step on.

        `aborted` are the entries that stay, of the markers in it.
        """
        self.reader.on_replaced()
        # Records may have been deleted since the cleaner began, and their aborts with them.
        start_offset = self.ledger.start_offset
        kept = [entry for entry in aborted if entry.last_offset >= start_offset]
        self.transactions.aborted.replace(first_offset, end_offset, kept)
        self._snapshots.forget_segments(self.ledger.segments.base_offsets, end_offset)

    # Stopping.

    def securing(self) -> Procedure[None]:
        """Make everything durable, and the next start quick; `close` is to follow."""
        state, ledger = self.state, self.ledger
        # Ledger and snapshot share their barriers: a stop secures thousands of logs.
        together = [ledger.securing(), self._epoch_files.securing(state.leader_epochs)]
        if state.end_offset > ledger.start_offset and self._snapshots.are_needed(state):
            # The snapshot gets its name after the barrier that makes the log durable.
            together.append(self._snapshots.securing(state))
        yield from in_step(together)

    def as_closed(self, segments: ClosedSegments) -> ClosedLog | None:
        """Return what the next start need not find out, after `securing`; None: it is too much."""
        if size_least(self.state) > STATE_BYTES_MAX:
            return None
        state = encode_snapshot(self.state)
        if len(state) > STATE_BYTES_MAX:
            return None
        return ClosedLog(self._epoch_files.stored_id, segments, *self._snapshots.written, state)

    def close(self) -> None:
        """Release the log. Without `securing` before it, the next start recovers it."""
        self._snapshots.abandon()
        self.ledger.close()

    def become_unknown(self) -> None:
        """Make the log refuse whatever is asked from this step on, because it is deleted."""
        self.reader.is_gone = True

    def become_moved(self, code: ErrorCode) -> None:
        """Make the log refuse with `code` whatever is asked from this step on, because another
        node is to lead it. What was appended still becomes durable, and is answered."""
        self.reader.move(code)

    def close_gone(self) -> None:
        """Release the log of a partition that is gone, and wake everything that waits for it."""
        self.close()
        self.reader.on_gone()
