"""One shard of a coordinator: its state, and the log of which the state is a fold.

A shard is a partition of `__transaction_state` or of `__consumer_offsets`. This class serves both
coordinators and owns no rule: the rules are pure functions of `coordinator`. Every request is

    decision = decide(shard.state, ...)  # pure; a refusal raises, and nothing has happened
    end_offset = shard.append(decision.records, now_ms)  # appends and applies
    ...  # timers are set, and work that is due begins
    await shard.durable(end_offset)  # the first await
    return decision.answer

The lines before the await are one step of the event loop, so no request sees a state that is not in
the log. The end offset is awaited also where there was nothing to append: the answer may rest on a
record that is not durable yet.

`replay` folds the log through the same `apply` as live requests, so the live state is the replayed
state. A record is applied with its offset in the log: between two commits of a group the later
offset wins. A marker is appended and applied in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from coordinator.decision import Urgency
from logstore.disk.pools import Pool
from logstore.partition.log import PartitionLog
from logstore.partition.reader import items_of
from logstore.partition.transaction_buffer import TransactionMarker
from wire.records import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    ControlType,
    EncodedRecords,
    Marker,
    SimpleRecord,
)
from wire.records.spans import scan_records

#: The thread that replays a shard which moves to this node while others are served.
LOADING = Pool("shards", 1)

#: What a batch and each record in it have besides keys and values, at most.
_BATCH_BYTES = 64
_RECORD_BYTES = 32
#: A batch with one of these attributes may hold more, or less, than the last values of its keys.
_LOOKED_AT_WHOLE = ATTRIBUTE_COMPRESSION | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL

RecordT = TypeVar("RecordT")
FoldedT = TypeVar("FoldedT", contravariant=True)
Batch = tuple[BatchHeader, bytes]


class Fold(Protocol[FoldedT]):
    """The state of a shard. It changes by these three calls alone, in the order of the log."""

    def apply(self, record: FoldedT, offset: int) -> None:
        """Fold a record at `offset` of the log."""
        ...

    def apply_pending(
        self, record: FoldedT, offset: int, producer_id: int, producer_epoch: int
    ) -> None:
        """Fold a record of a producer's transaction, whose marker is still to come."""
        ...

    def apply_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Fold the marker that ends a producer's transaction."""
        ...


class RecordFormat(NamedTuple, Generic[RecordT]):
    """The bytes of one coordinator's records."""

    encode: Callable[[RecordT, int, int], SimpleRecord]
    """(record, now_ms, the topic's max.message.bytes) -> its bytes. Raises MESSAGE_TOO_LARGE for a
    record that may not be appended."""
    decode: Callable[[bytes | None, bytes | None], RecordT | None]
    """(key, value) -> the record; None for one of a kind that is not known here. Raises WireError
    for garbage."""
    is_bounded: bool = True
    """Whether the log refuses a batch above max.message.bytes. False: `encode` alone decides."""


StateT = TypeVar("StateT", bound=Fold[Any])


class RunningShard(Generic[StateT, RecordT]):
    """A shard's state and its log. Call `replay` before anything else."""

    __slots__ = ("_format", "log", "state")

    def __init__(
        self, log: PartitionLog, state: StateT, record_format: RecordFormat[RecordT]
    ) -> None:
        self.log = log
        self.state = state
        self._format = record_format

    def durable(self, end_offset: int) -> Coroutine[Any, Any, None]:
        """Return a wait until everything before `end_offset` (exclusive) survives a power loss."""
        return self.log.durable(end_offset)

    def ordered(self, end_offset: int) -> Coroutine[Any, Any, None]:
        """Return a wait until everything before `end_offset` (exclusive) is ordered.

        See `logstore.sync.committed_ledger`.
        """
        return self.log.ordered(end_offset)

    def replay(self) -> None:
        """Fold what the log holds, in offset order. Blocks. WireError: the log holds garbage.

        Leaves out batches that later ones have replaced, as compaction does.
        """
        state, decode, log = self.state, self._format.decode, self.log
        start_offset, reader = log.log_start_offset, log.reader
        batches = reader.iterate_batches_from(start_offset)
        for header, batch in not_replaced(batches, reader.last_stable_offset):
            producer = (header.producer_id, header.producer_epoch)
            for item in items_of(header, batch):
                if isinstance(item, Marker):
                    state.apply_marker(*producer, commit=item.control_type is ControlType.COMMIT)
                    continue
                # A batch may begin below the log's start.
                if item.offset < start_offset:
                    continue
                record = decode(item.key, item.value)
                if record is None:
                    continue
                if header.is_transactional:
                    state.apply_pending(record, item.offset, *producer)
                else:
                    state.apply(record, item.offset)

    def append(
        self,
        records: Sequence[RecordT],
        now_ms: int,
        urgency: Urgency = Urgency.AWAITED,
        *,
        encoded: Sequence[SimpleRecord] | EncodedRecords | None = None,
    ) -> int:
        """Append and apply `records` as one batch; return the log's end offset (exclusive) to
        await, also for no records. Raises MESSAGE_TOO_LARGE, and nothing has happened.

        `encoded`: the bytes of `records`, where the caller has them already.
        """
        # All are encoded before the append: a record that is too large changes nothing.
        encode, bytes_max = self._format.encode, self.log.config.max_message_bytes
        if encoded is None:
            encoded = [encode(record, now_ms, bytes_max) for record in records]
        if not encoded:
            return self.log.log_end_offset
        appended = self.log.append_records(
            encoded,
            may_wait=urgency is Urgency.RELAXED,
            is_atomic=urgency is Urgency.ONE_RECORD,
            is_bounded=self._format.is_bounded,
        )
        end_offset = appended.end_offset
        assert end_offset == appended.base_offset + len(records), "one offset for each record"
        # After the append: a refused append has changed nothing.
        for offset, record in enumerate(records, appended.base_offset):
            self.state.apply(record, offset)
        return end_offset

    def append_in_parts(self, records: Sequence[RecordT], now_ms: int) -> int:
        """As `append`, in as many batches as needed: for many records that need not be one batch.

        A crash may leave only the first of them, so each must be valid without the next ones.
        Raises MESSAGE_TOO_LARGE for a single record, after the earlier ones were appended.
        """
        encode, bytes_max = self._format.encode, self.log.config.max_message_bytes
        encoded = [encode(record, now_ms, bytes_max) for record in records]
        limit = bytes_max - _BATCH_BYTES
        first = size_bytes = 0
        for position, each in enumerate(encoded):
            more = len(each.key or b"") + len(each.value or b"") + _RECORD_BYTES
            if size_bytes + more > limit and position > first:
                part = slice(first, position)
                self.append(records[part], now_ms, encoded=encoded[part])
                first, size_bytes = position, 0
            size_bytes += more
        return self.append(records[first:], now_ms, encoded=encoded[first:])

    def append_pending(
        self,
        records: Sequence[RecordT],
        producer_id: int,
        producer_epoch: int,
        now_ms: int,
        *,
        encoded: Sequence[SimpleRecord] | EncodedRecords | None = None,
    ) -> int:
        """Append records as a batch of the producer's transaction; return the end offset to await.

        Raises INVALID_PRODUCER_EPOCH, COORDINATOR_LOAD_IN_PROGRESS, MESSAGE_TOO_LARGE, and nothing
        has happened. `encoded` is as in `append`.
        """
        base_offset = self.log.log_end_offset
        if not records:
            return base_offset
        encode, bytes_max = self._format.encode, self.log.config.max_message_bytes
        if encoded is None:
            encoded = [encode(record, now_ms, bytes_max) for record in records]
        appended = self.log.append_records(
            encoded,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=True,
            is_bounded=self._format.is_bounded,
        )
        for offset, record in enumerate(records, base_offset):
            self.state.apply_pending(record, offset, producer_id, producer_epoch)
        return appended.end_offset

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> tuple[PartitionLog, int]:
        """Append and apply a transaction's marker; return the log and the end offset to await.

        Raises INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, and nothing has happened.
        """
        end_offset = self.log.append_marker(marker, now_ms).end_offset
        self.state.apply_marker(marker.producer_id, marker.producer_epoch, commit=marker.commit)
        return self.log, end_offset


def not_replaced(
    batches: Iterable[tuple[BatchHeader, Buffer]], stable_offset: int
) -> Collection[Batch]:
    """Return the batches that a replay needs: those that have the last record of some key.

    Always kept: batches of transactions, markers, compressed batches, and all from `stable_offset`
    on. An open transaction may begin there, and a deletion takes pending offsets out of it,
    whatever is committed later. A busy group leaves ten thousand commits until compaction, and
    decoding a record costs four times as much as looking at its key.

    Raises WireError for lengths that do not fit.
    """
    kept: dict[int, Batch] = {}
    #: By key: the base offset of the batch that has its last record so far.
    last_in: dict[bytes | None, int] = {}
    #: By base offset: of how many keys that batch has the last record.
    key_counts: dict[int, int] = {}
    for header, batch in batches:
        base_offset = header.base_offset
        # A copy: the batch may be a view of a block of the file, which it would keep in memory.
        data = bytes(batch)
        kept[base_offset] = header, data
        if header.attributes & _LOOKED_AT_WHOLE:
            continue
        spans, _ = scan_records(data, BATCH_OVERHEAD, header.record_count)
        keys = {key for _, _, _, key, _ in spans}
        if base_offset < stable_offset:
            key_counts[base_offset] = len(keys)
        for key in keys:
            former = last_in.get(key)
            last_in[key] = base_offset
            if former not in key_counts:
                continue
            key_counts[former] -= 1
            if not key_counts[former]:
                del kept[former], key_counts[former]
    return kept.values()
