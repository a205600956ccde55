"""What a partition shows: its bounds, and whole batches below them.

Owns what a partition promises to its readers, and who is told when a bound has moved:

- Nothing is visible that is not durable: the high watermark is the durable end.
- High watermark and stable offset move in one step of the event loop, after the state is updated;
  a transaction whose marker is not durable counts as open. No reader can run in between.

Not here: what changes the log (`partition`). Source: KIP-98, KIP-101, KIP-320.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from logstore.partition.producer_state import Producers
from logstore.partition.reads import (
    Isolation,
    PartitionDeleted,
    Slice,
    aborted_in,
    records_and_markers,
)
from logstore.partition.state import PartitionState
from logstore.partition.transaction_buffer import TransactionBuffer
from logstore.segments.ledger import Ledger, TimestampOffset
from logstore.sync.durable_end import LedgerClosed
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import BatchHeader, Marker, Record

_EMPTY = memoryview(b"")


class VisibleLog:
    """A partition's log as its readers see it. `PartitionLog` is the whole."""

    def __init__(self, topic: str, partition: int, ledger: Ledger, leader_epoch: int) -> None:
        self.topic = topic
        self.partition = partition
        self.leader_epoch = leader_epoch
        #: Whether the partition is no more: whatever is asked of it, it is unknown.
        self.is_deleted = False
        #: Exclusive bounds of what may be read; moved by `_move_bounds` only.
        self.high_watermark = 0
        self.last_stable_offset = 0
        self._ledger = ledger
        self._subscribers: dict[Callable[[], None], None] = {}
        #: How often the cleaner has put a segment in the place of others.
        self._replacements = 0
        self._take_state(PartitionState())

    def _take_state(self, state: PartitionState) -> None:
        self._state = state
        self.producers: Producers = state.producers
        self.transactions: TransactionBuffer = state.transactions

    @property
    def state(self) -> PartitionState:
        """Everything folded from the log up to its end, durable or not."""
        return self._state

    @property
    def log_start_offset(self) -> int:
        return self._ledger.start_offset

    @property
    def log_end_offset(self) -> int:
        return self._state.end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches stored."""
        return self._ledger.segments.size_bytes

    @property
    def ledger(self) -> Ledger:
        """What keeps the bytes, for who decides about whole segments."""
        return self._ledger

    @property
    def recovery_point(self) -> int:
        """Where recovery of the bytes may begin."""
        return self._ledger.recovery_point

    # Becoming durable and visible.

    async def durable(self, end_offset: int) -> None:
        """Return once everything below `end_offset` is durable and visible.

        Raises StorageFailure, and PartitionDeleted if the partition is deleted meanwhile.
        """
        try:
            waiter = self._ledger.until_durable(end_offset)
            if waiter is not None:
                await waiter
        except LedgerClosed:
            if self.is_deleted:
                raise PartitionDeleted(self.topic, self.partition) from None
            raise

    def until_durable(self, end_offset: int) -> asyncio.Future[None] | None:
        """As `durable`, but that the deletion of the partition is LedgerClosed; None where it is
        already. Who asked first is woken first."""
        return self._ledger.until_durable(end_offset)

    def _notify(self) -> None:
        if self._subscribers:
            for callback in tuple(self._subscribers):
                callback()

    def _move_bounds(self, end_offset: int) -> None:
        """Move high watermark and stable offset: the one place, one step."""
        assert end_offset <= self._state.end_offset, "durable, but not accounted for"
        self.high_watermark = end_offset
        stable, start_offset = self.transactions.stabilize(end_offset), self._ledger.start_offset
        self.last_stable_offset = stable if stable > start_offset else start_offset

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back, on the event loop, when a bound has moved, or the partition is deleted."""
        self._subscribers[callback] = None

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """End a subscription, if there is one."""
        self._subscribers.pop(callback, None)

    # Reading.

    def read(
        self, offset: int, max_bytes: int, isolation: Isolation, *, at_least_one: bool = True
    ) -> Slice | None:
        """Return whole batches from the one containing `offset` on, below the isolation's bound.

        None: the disk would be waited for, use `read_cold`. Raises OFFSET_OUT_OF_RANGE below the
        log's start and above its end.
        """
        bound = self._check_offset(offset, isolation)
        if offset >= bound:
            return self._slice(offset, _EMPTY, isolation)
        records = self._ledger.batches.read(offset, max_bytes, bound, at_least_one=at_least_one)
        return None if records is None else self._slice(offset, records, isolation)

    async def read_cold(
        self, offset: int, max_bytes: int, isolation: Isolation, *, at_least_one: bool = True
    ) -> Slice:
        """As `read`, waiting for the disk in a thread; PartitionDeleted also for one that goes
        meanwhile: the names that were read by may have become another's.

        What was read of segments that went meanwhile is of no account, for the aborted index tells
        of what is stored now: below the start OFFSET_OUT_OF_RANGE, and what the cleaner has
        replaced is read again.
        """
        while True:
            bound = self._check_offset(offset, isolation)
            if offset >= bound:
                return self._slice(offset, _EMPTY, isolation)
            replacements = self._replacements
            try:
                records = await self._ledger.batches.read_cold(
                    offset, max_bytes, bound, at_least_one=at_least_one
                )
            except KafkaError:
                self._check_exists()
                raise
            self._check_offset(offset, isolation)
            if replacements == self._replacements:
                return self._slice(offset, records, isolation)

    def bound(self, isolation: Isolation) -> int:
        """The offset that a reader of that isolation may not reach: ListOffsets LATEST."""
        if isolation == Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def _check_exists(self) -> None:
        if self.is_deleted:
            raise PartitionDeleted(self.topic, self.partition)

    def _check_offset(self, offset: int, isolation: Isolation) -> int:
        self._check_exists()
        if not self._ledger.start_offset <= offset <= self._state.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}, {self.topic}-{self.partition} has"
                f" {self._ledger.start_offset} to {self._state.end_offset}",
            )
        return self.bound(isolation)

    def _slice(self, offset: int, records: memoryview, isolation: Isolation) -> Slice:
        aborted = None
        if isolation == Isolation.READ_COMMITTED:
            aborted = aborted_in(self.transactions.aborted, offset, records)
        return Slice(
            records,
            self.high_watermark,
            self.last_stable_offset,
            self._ledger.start_offset,
            aborted,
        )

    def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> TimestampOffset | None:
        """The first record below the isolation's bound whose timestamp is `>= timestamp_ms`."""
        return self._ledger.batches.offset_for_timestamp(
            timestamp_ms, self._ledger.start_offset, self.bound(isolation)
        )

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record that has the largest timestamp; None when that is not visible yet."""
        found = self._ledger.batches.max_timestamp()
        return found if found is not None and found.offset < self.high_watermark else None

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (epoch, exclusive end offset) of the largest epoch not above `leader_epoch`.

        The leader's own counts from when the partition was opened, written in or not; (-1, -1) for
        one above it. Source: KIP-320.
        """
        epochs = self._state.leader_epochs.with_leader(self.leader_epoch, self._state.end_offset)
        return epochs.end_offset_for(leader_epoch, self.high_watermark)

    def iterate_batches_from(self, offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield whole batches from the one containing `offset` to the log's end. Blocks."""
        return self._ledger.batches.iterate(offset)

    def iterate_records_from(self, offset: int) -> Iterator[tuple[BatchHeader, Record | Marker]]:
        """Yield every record and marker from `offset` to the log's end, in order. Blocks.

        For a coordinator's replay of its shard at start.
        """
        return records_and_markers(self._ledger.batches.iterate(offset), offset)
