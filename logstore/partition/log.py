"""One partition: validate, append, fold, durable, visible, answer.

Owns what a partition promises to its writers, over a `Ledger` that keeps its bytes; what it
promises to its readers is `partition_visibility`'s:

- Nothing invalid is written: a refusal (`KafkaError`) leaves log and state as they were.
- The live state equals the state replayed from the log, always (`partition_state`).

Everything runs on the event loop's thread; only `durable` and `read_cold` wait. Not here: whether
a transaction is ongoing at its coordinator, which is to be asked before `append`.
Source: KIP-98, KIP-101, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from logstore.directory.closed_logs import STATE_BYTES_MAX, ClosedLog
from logstore.disk.barriers import Procedure, in_step
from logstore.partition.log_config import INT32_MAX, LogConfig
from logstore.partition.log_start import deletable_before, give_up
from logstore.partition.metadata import MetadataFiles
from logstore.partition.reads import (
    Appended,
    Isolation,
    PartitionDeleted,
    Slice,
    appended_before,
)
from logstore.partition.recovery import recover_state, state_as_closed
from logstore.partition.snapshot import encode_snapshot
from logstore.partition.snapshots import Snapshots
from logstore.partition.transaction_marker import TransactionMarker
from logstore.partition.validation import check_batch, stored_as
from logstore.partition.visibility import VisibleLog
from logstore.segments.aborted_index import AbortedEntry
from logstore.segments.ledger import Ledger
from logstore.segments.names import aborted_name
from logstore.segments.stored_segments import ClosedSegments
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import (
    BatchHeader,
    ControlType,
    Marker,
    SimpleRecord,
    TimestampType,
    build_batch,
    build_marker,
    place,
    set_log_append_time,
)
from wire.records.header import ATTRIBUTE_COMPRESSION, ATTRIBUTE_TRANSACTIONAL

__all__ = ["Appended", "Isolation", "PartitionDeleted", "PartitionLog", "Slice"]

Verify = Callable[[BatchHeader], None]
_NO_APPEND_TIME = -1
#: Silent producers are looked for that often, as Kafka's producer.id.expiration.check.interval.ms.
_EXPIRATION_CHECK_MS = 600_000
#: The headers of a log that is no longer are read as quickly as a snapshot is written.
_SHORT_BYTES = 1 << 20


class PartitionLog(VisibleLog):
    """The log of one partition. `opening` first."""

    def __init__(
        self,
        topic: str,
        partition: int,
        ledger: Ledger,
        config: LogConfig,
        *,
        leader_epoch: int = 0,
        topic_id: UUID | None = None,
        on_recovery_point: Callable[[], None] | None = None,
    ) -> None:
        """`on_recovery_point` is called when the recovery point has moved."""
        super().__init__(topic, partition, ledger, leader_epoch)
        self.config = config
        self.topic_id = topic_id
        self._on_recovery_point = on_recovery_point
        self._recovery_point_seen = 0
        self._snapshots = Snapshots(ledger, config.snapshot_interval_bytes)
        self._expiration_due_ms = 0
        #: Whether a replay knows producers that are forgotten.
        self._has_forgotten = False
        #: Compaction goes on from here; what is below has been cleaned once.
        self.first_dirty_offset = 0
        self._metadata = MetadataFiles(ledger, topic_id)

    def opening(
        self,
        now_ms: int,
        *,
        was_clean: bool = False,
        is_locked: bool = False,
        closed: ClosedLog | None = None,
    ) -> Procedure[None]:
        """Recover what is stored; then everything in it is durable and visible.

        `was_clean`: it was closed cleanly the last time; `closed`: as that, which its ledger has
        too. `is_locked`: nobody else can write, so no epoch is too low, and the leader epoch
        becomes at least that of the last batch. Else raises LedgerFenced.
        """
        ledger = self._ledger
        yield from ledger.opening(INT32_MAX if is_locked else self.leader_epoch)
        state = None if closed is None else state_as_closed(ledger, closed.state)
        if state is None or closed is None:
            self._take_state(recover_state(ledger, now_ms))
            yield from self._snapshots.beginning(self._state, was_clean=was_clean)
        else:
            self._take_state(state)
            self._snapshots.resume(closed.snapshots, closed.kafka_snapshots)
        self.leader_epoch = max(self.leader_epoch, self._state.leader_epochs.latest)
        self._metadata.leader_epoch = self._state.leader_epochs.latest
        self._expiration_due_ms = now_ms + _EXPIRATION_CHECK_MS
        self._recovery_point_seen = ledger.recovery_point
        self._move_bounds(ledger.durable_end_offset)
        ledger.on_durable = self._on_durable
        ledger.on_roll = self._on_roll
        if ledger.end_offset > ledger.start_offset and not was_clean:
            state = self._state
            self._metadata.write(state.leader_epochs, state.leader_epochs.latest, state.end_offset)
        ledger.opened()

    def reconfigure(self, config: LogConfig) -> None:
        """Obey `config` from the next batch on; what is stored stays as it is."""
        self.config = config
        self._ledger.reconfigure(config)

    # Writing.

    def append(
        self, batch: bytearray | memoryview, now_ms: int, *, verify: Verify | None = None
    ) -> Appended:
        """Append a client's batch; its base offset and leader epoch are written in place.

        Raises KafkaError for what `check_batch` and `Producers.check` refuse, and
        INVALID_TXN_STATE for a plain batch of a producer that has a transaction open here.
        `verify` sees a well-formed batch's header before all else, and refuses by raising.
        """
        header = check_batch(batch, self.config, now_ms)
        if verify is not None:
            verify(header)
        producer_id = header.producer_id
        if producer_id >= 0:
            duplicate = self.producers.check(header)
            if duplicate is not None:
                return appended_before(duplicate, self.config, self._ledger.start_offset)
            if not header.attributes & ATTRIBUTE_TRANSACTIONAL:
                self.transactions.check_plain(producer_id)
        if isinstance(batch, memoryview) and batch.readonly:
            batch = bytearray(batch)
        codec = self.config.compression
        if codec is not None and header.attributes & ATTRIBUTE_COMPRESSION != codec:
            batch, header = stored_as(codec, batch, header, self.config)
        append_time_ms = _NO_APPEND_TIME
        if self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            set_log_append_time(batch, now_ms)
            header = BatchHeader.parse(batch)
            append_time_ms = now_ms
        base_offset, leader_epoch = self._state.end_offset, self.leader_epoch
        place(batch, base_offset, leader_epoch)
        header = BatchHeader(base_offset, header[1], leader_epoch, *header[3:])
        return self._append(batch, header, now_ms, append_time_ms)

    def append_records(
        self,
        records: Sequence[SimpleRecord],
        now_ms: int,
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

        Raises INVALID_PRODUCER_EPOCH for a zombie's epoch, MESSAGE_TOO_LARGE.
        """
        if producer_id >= 0:
            self.producers.check_epoch(producer_id, producer_epoch)
            if not is_transactional:
                self.transactions.check_plain(producer_id)
        batch = build_batch(
            records,
            base_offset=self._state.end_offset,
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
        header = BatchHeader.parse(batch)
        return self._append(
            batch, header, now_ms, _NO_APPEND_TIME, may_wait=may_wait, is_atomic=is_atomic
        )

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> Appended:
        """Append the marker that ends the producer's transaction here, or an empty one.

        Atomic, as `Ledger.append` has it, with what its decision has appended in the same step.
        Visible only once it is durable. Raises INVALID_PRODUCER_EPOCH for an older epoch than the
        data's, TRANSACTION_COORDINATOR_FENCED for an older coordinator than the last one's.
        """
        producer_id, producer_epoch, coordinator_epoch, commit, _ = marker
        is_open = self.transactions.is_open(producer_id)
        self.producers.check_marker(marker, is_open=is_open)
        batch = build_marker(
            base_offset=self._state.end_offset,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commit=commit,
            timestamp_ms=now_ms,
            leader_epoch=self.leader_epoch,
        )
        header = BatchHeader.parse(batch)
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        return self._append(
            batch,
            header,
            now_ms,
            _NO_APPEND_TIME,
            is_atomic=True,
            marker=Marker(kind, coordinator_epoch),
        )

    def _on_marker(self, header: BatchHeader, marker: Marker, now_ms: int) -> None:
        completed = self._state.on_marker(header, marker, now_ms)
        if completed is not None and completed.is_aborted:
            # Durable in the same step as the marker, so the file is whole below every durable end.
            offset = header.base_offset
            self._ledger.attachments.append(
                aborted_name(self._ledger.segments.base_offsets[-1]),
                next(self.transactions.aborted.entries(offset, offset + 1)).encode(),
            )

    def _append(
        self,
        batch: bytearray | memoryview,
        header: BatchHeader,
        now_ms: int,
        append_time_ms: int,
        *,
        may_wait: bool = False,
        is_atomic: bool = False,
        marker: Marker | None = None,
    ) -> Appended:
        """Append a batch that has its place, which is the log's end. `marker`: what it says, if it
        is one."""
        if self.is_deleted:
            raise PartitionDeleted(self.topic, self.partition)
        if self._metadata.leader_epoch != self.leader_epoch:
            self._write_metadata()
        state, ledger = self._state, self._ledger
        ledger.append(batch, header, may_wait=may_wait, is_atomic=is_atomic)
        if marker is None:
            state.on_batch(header, now_ms)
        else:
            self._on_marker(header, marker, now_ms)
        if now_ms >= self._expiration_due_ms:
            self.expire_producers(now_ms)
        if self._snapshots.is_due(header.batch_length):
            self._snapshots.take(state, for_kafka=False)
        end_offset = state.end_offset
        return Appended(
            header.base_offset,
            end_offset - 1,
            end_offset,
            append_time_ms,
            ledger.start_offset,
            False,
        )

    def _write_metadata(self) -> None:
        state = self._state
        self._metadata.write(state.leader_epochs, self.leader_epoch, state.end_offset)

    def expire_producers_if_due(self, now_ms: int) -> bool:
        """Every ten minutes `expire_producers`; returns whether it was time."""
        is_due = now_ms >= self._expiration_due_ms
        if is_due:
            self.expire_producers(now_ms)
        return is_due

    def expire_producers(self, now_ms: int) -> list[int]:
        """Forget producers silent for `producer.id.expiration.ms`, unless their transaction is
        open. Returns their ids.
        """
        self._expiration_due_ms = now_ms + _EXPIRATION_CHECK_MS
        forgotten = self.producers.expire(
            now_ms - self.config.producer_id_expiration_ms, self.transactions.open_producer_ids()
        )
        self._has_forgotten |= bool(forgotten)
        return forgotten

    def _on_durable(self, end_offset: int) -> None:
        self._move_bounds(end_offset)
        if self._snapshots.pending:
            self._snapshots.on_durable(end_offset)
        recovery_point = self._ledger.recovery_point
        if recovery_point != self._recovery_point_seen:
            self._recovery_point_seen = recovery_point
            if self._on_recovery_point is not None:
                self._on_recovery_point()
        self._notify()

    def _on_roll(self, _base_offset: int) -> None:
        """A segment is about to end: its trim will rely on this snapshot."""
        self._snapshots.take(self._state, for_kafka=True)
        self._snapshots.on_durable(self.high_watermark)

    # Giving up what is old, and stopping.

    def deletable_before(self, offset: int) -> int:
        """Return the start that DeleteRecords before `offset` (-1: the high watermark) asks for.

        An offset that is below the start already changes nothing. Raises OFFSET_OUT_OF_RANGE above
        the high watermark.
        """
        return max(deletable_before(offset, self.high_watermark), self._ledger.start_offset)

    def advance_start(self, start_offset: int) -> None:
        """Begin at `start_offset`, durable as such and visible; what is below is gone."""
        if start_offset > self._ledger.start_offset:
            if give_up(self._ledger, self._state, self._snapshots, start_offset):
                self._write_metadata()
            self.last_stable_offset = max(self.last_stable_offset, start_offset)
            self._notify()

    # Being cleaned.

    async def secure_state(self) -> None:
        """Return when all of the state is durable, in a snapshot too, and every batch in its own
        segment. As `durable`."""
        if self.is_deleted:
            raise PartitionDeleted(self.topic, self.partition)
        end_offset = self._state.end_offset
        self._snapshots.take(self._state, for_kafka=False, synced=True)
        self._snapshots.on_durable(self.high_watermark)
        await self.durable(end_offset)
        await self._ledger.segments.settled()

    def on_replaced(self, first_offset: int, end_offset: int, aborted: list[AbortedEntry]) -> None:
        """One segment holds [first_offset, end_offset) from this step on, cleaned.

        `aborted` are the entries that stay, of the markers in it.
        """
        self._replacements += 1
        self._state.transactions.aborted.replace(first_offset, end_offset, aborted)
        self._snapshots.forget_segments(self._ledger.segments.base_offsets, end_offset)

    def on_cleaned(self, first_dirty_offset: int) -> None:
        """The log is clean up to there."""
        self.first_dirty_offset = first_dirty_offset

    def securing(self) -> Procedure[None]:
        """Make everything durable, and the next start quick; `close` is to follow."""
        state, ledger = self._state, self._ledger
        together = [ledger.securing()]
        if state.end_offset > ledger.start_offset and not self._tells_all():
            # Its name comes after the barrier that makes the log durable.
            together.append(self._snapshots.securing(state))
        yield from in_step(together)

    def _tells_all(self) -> bool:
        """Whether the log's own headers tell as much as a snapshot, and as quickly."""
        is_plain = not (self.producers or self.transactions.has_any or self._has_forgotten)
        return is_plain and self._ledger.segments.size_bytes <= _SHORT_BYTES

    def as_closed(self, ledger: ClosedSegments) -> ClosedLog | None:
        """What the next start need not find out, after `securing`; None where it is too much."""
        state = encode_snapshot(self._state)
        if len(state) > STATE_BYTES_MAX:
            return None
        return ClosedLog(self.topic_id, ledger, *self._snapshots.written, state)

    def close(self) -> None:
        """Release the log. Without `securing` before it, the next start recovers it."""
        self._ledger.close()

    def close_deleted(self) -> None:
        """Release the log of a partition that is deleted, and wake whoever waits for it."""
        self.is_deleted = True
        self._ledger.close()
        self._notify()
