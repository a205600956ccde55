"""One shard of the group coordinator at work: its state, and the log that it is a fold of.

Append and apply are one step without an await, live and on replay alike: a record's offset in the
log decides between commits, so it is given to the state with the record. A marker is appended and
resolves the pending acks of its transaction in the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.groups.classic.group import GroupLimits
from coordinator.groups.offsets.committed import OffsetRecord
from coordinator.groups.records import ShardRecord, decode, encode
from coordinator.groups.shard import GroupShard
from logstore.partition.log import PartitionLog
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.runtime.shard_log import ShardLog
from wire.records import ControlType, Marker, SimpleRecord

#: At most, of a batch and of each record in it, besides its key and value.
_BATCH_BYTES = 64
_RECORD_BYTES = 32


class RunningShard:
    """A shard that has been replayed, or is about to be: call `replay` first."""

    __slots__ = ("_partition_log", "log", "state")

    def __init__(self, log: PartitionLog, limits: GroupLimits) -> None:
        self._partition_log = log
        self.log = ShardLog(log)
        self.state = GroupShard(limits)

    def replay(self, now_ms: int) -> None:
        """Fold everything that the log holds; then members have a whole session to come back."""
        for header, item in self.log.replay():
            if isinstance(item, Marker):
                commit = item.control_type is ControlType.COMMIT
                self.state.apply_marker(header.producer_id, header.producer_epoch, commit=commit)
                continue
            record = decode(item.key, item.value)
            if record is None:
                continue
            if header.is_transactional and isinstance(record, OffsetRecord):
                self.state.apply_pending(
                    record, item.offset, header.producer_id, header.producer_epoch
                )
            else:
                self.state.apply(record, item.offset)
        self.state.resume(now_ms)

    def append(self, records: Sequence[ShardRecord], now_ms: int) -> int:
        """Append and apply the records of a decision; return the log's end to await, also for none.

        Raises MESSAGE_TOO_LARGE, and nothing has happened.
        """
        return self._append_encoded(records, _encoded(records, now_ms), now_ms)

    def append_in_parts(self, records: Sequence[ShardRecord], now_ms: int) -> int:
        """As `append`, in as many batches as it takes: for what may be much and need not be one.

        A crash in between leaves the first of them: each record must be well without the next.
        Raises MESSAGE_TOO_LARGE for a single record, after those before it.
        """
        encoded = _encoded(records, now_ms)
        limit = self.log.batch_bytes_max - _BATCH_BYTES
        first = size = 0
        for position, each in enumerate(encoded):
            more = len(each.key or b"") + len(each.value or b"") + _RECORD_BYTES
            if size + more > limit and position > first:
                part = slice(first, position)
                self._append_encoded(records[part], encoded[part], now_ms)
                first, size = position, 0
            size += more
        return self._append_encoded(records[first:], encoded[first:], now_ms)

    def _append_encoded(
        self, records: Sequence[ShardRecord], encoded: list[SimpleRecord], now_ms: int
    ) -> int:
        base_offset = self.log.end_offset
        end_offset = self.log.append(encoded, now_ms)
        for position, record in enumerate(records):
            self.state.apply(record, base_offset + position)
        return end_offset

    def append_pending(
        self,
        records: Sequence[OffsetRecord],
        producer_id: int,
        producer_epoch: int,
        now_ms: int,
    ) -> int:
        """Append offsets as a batch of the producer's transaction; return the log's end to await.

        Raises INVALID_PRODUCER_EPOCH, MESSAGE_TOO_LARGE, and nothing has happened.
        """
        end_offset = self.log.append(
            _encoded(records, now_ms),
            now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=True,
        )
        base_offset = end_offset - len(records)
        for position, record in enumerate(records):
            self.state.apply_pending(record, base_offset + position, producer_id, producer_epoch)
        return end_offset

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> tuple[PartitionLog, int]:
        """Append a transaction's marker and resolve its pending acks; return what to await."""
        appended = self._partition_log.append_marker(marker, now_ms)
        self.state.apply_marker(marker.producer_id, marker.producer_epoch, commit=marker.commit)
        return self._partition_log, appended.end_offset


def _encoded(records: Sequence[ShardRecord], now_ms: int) -> list[SimpleRecord]:
    return [SimpleRecord(*encode(record), now_ms) for record in records]
