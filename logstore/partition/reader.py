"""What a partition shows its readers: its bounds, and whole batches below them.

Owns what a partition promises to its readers, and tells subscribers when a bound has moved:

- Nothing is visible that is not durable: the high watermark is the durable end.
- High watermark and last stable offset move in one step of the event loop, after the state is
  updated; a transaction whose marker is not durable counts as open. No reader can run in between.
- A fetch over aborted data alone still returns its bytes, so that the reader's position advances.

Not here: what changes the log (`log`). Source: KIP-98, KIP-101, KIP-320.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple, NoReturn

from logstore.disk.file_range import FileRange
from logstore.partition.state import PartitionState
from logstore.segments.aborted_index import AbortedTransaction
from logstore.segments.ledger import Ledger, TimestampOffset
from logstore.sync.group_commit import LedgerClosed
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.records import (
    BatchHeader,
    Buffer,
    Marker,
    Record,
    iterate_records,
    parse_marker,
    whole_batches,
)

_EMPTY = memoryview(b"")
#: Aborted transactions that one read tells of, besides those that were open at its end: to tell of
#: so many takes 12 ms.
_ABORTED_MAX = 4_096


class Isolation(IntEnum):
    """Fetch's and ListOffsets' isolation level."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class PartitionGone(KafkaError, LedgerClosed):
    """The partition is not here any more. Answer its code to all that ask or wait."""


class PartitionDeleted(PartitionGone):
    """The partition is deleted: UNKNOWN_TOPIC_OR_PARTITION."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is deleted")


class PartitionMoved(PartitionGone):
    """Another node leads the partition from now on: the code that says so."""

    def __init__(self, topic: str, partition: int, code: ErrorCode) -> None:
        super().__init__(code, f"another node leads {topic}-{partition} now")


class Slice(NamedTuple):
    """One partition's answer to a fetch.

    `records` are whole batches, the first of which contains the fetch offset; empty at the bound.
    `aborted` is None under read_uncommitted.
    """

    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[AbortedTransaction] | None
    in_file: FileRange | None = None
    """Stands in the place of `records`, which is empty then: the same batches, not read yet."""

    def in_memory(self) -> Slice:
        """Return the same with what is in a file read. Raises OSError."""
        if self.in_file is None:
            return self
        return self._replace(records=memoryview(bytes(self.in_file)), in_file=None)

    def bound(self, isolation: Isolation) -> int:
        """Return the offset that a reader of that isolation could not reach at the read."""
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark


class LogReader:
    """One partition as its readers see it. The bounds are exclusive; only `advance` moves them."""

    __slots__ = (
        "_batches",
        "_ledger",
        "_moved",
        "_partition",
        "_replacements",
        "_state",
        "_subscribers",
        "_topic",
        "high_watermark",
        "is_gone",
        "last_stable_offset",
    )

    def __init__(self, topic: str, partition: int, ledger: Ledger) -> None:
        self._topic = topic
        self._partition = partition
        self._ledger = ledger
        self._batches = ledger.batches
        self._state: PartitionState
        self._subscribers: dict[Callable[[], None], None] = {}
        #: How often the cleaner has put one segment in the place of others.
        self._replacements = 0
        self.high_watermark = 0
        self.last_stable_offset = 0
        #: Whether the partition is deleted, or led elsewhere. Every read is refused from then on.
        self.is_gone = False
        #: What is answered where the partition is led elsewhere.
        self._moved: ErrorCode | None = None

    # The bounds.

    def begin(self, state: PartitionState) -> None:
        """Show the recovered `state`: all that is durable, so all of it."""
        self._state = state
        self.advance(self._ledger.durable_end_offset)

    def advance(self, end_offset: int) -> None:
        """Show everything below the durable `end_offset`, and tell the subscribers."""
        state, start_offset = self._state, self._ledger.start_offset
        assert self.high_watermark <= end_offset <= state.end_offset, "durable, not accounted for"
        stable = state.transactions.stabilize(end_offset)
        # Retention and DeleteRecords may cut off the beginning of a transaction that is open still.
        self.last_stable_offset = stable if stable > start_offset else start_offset
        self.high_watermark = end_offset
        if self._subscribers and self._moved is None:
            self._notify()

    def on_new_start(self) -> None:
        """The ledger's start has moved up. Tell the subscribers."""
        if self.last_stable_offset < self._ledger.start_offset:
            self.last_stable_offset = self._ledger.start_offset
        assert self.last_stable_offset <= self.high_watermark, "the start is not durable"
        if self._moved is None:
            self._notify()

    def on_replaced(self) -> None:
        """The cleaner has replaced segments. Reads under way read again."""
        self._replacements += 1

    def on_gone(self) -> None:
        """The ledger is closed for good: wake everything that waits for the partition."""
        self.is_gone = True
        self._notify()

    def move(self, code: ErrorCode) -> None:
        """Refuse with `code` from now on, because another node is to lead the partition.

        Subscribers hear of that by `on_gone`, once the other nodes know.
        """
        self._moved = code
        self.is_gone = True

    @property
    def gone(self) -> PartitionGone:
        """The refusal of what is asked once `is_gone`."""
        if self._moved is not None:
            return PartitionMoved(self._topic, self._partition, self._moved)
        return PartitionDeleted(self._topic, self._partition)

    def bound(self, isolation: Isolation) -> int:
        """Return the offset that a reader of that isolation may not reach: ListOffsets LATEST."""
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back, on the event loop, when a bound has moved or the partition is gone."""
        self._subscribers[callback] = None

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """End a subscription, if there is one."""
        self._subscribers.pop(callback, None)

    def _notify(self) -> None:
        # A copy: a callback may end its own subscription.
        for callback in tuple(self._subscribers):
            callback()

    # Batches and records.

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation,
        *,
        at_least_one: bool = True,
        in_file: bool = False,
    ) -> Slice | None:
        """Return whole batches from the one containing `offset` on, below the isolation's bound.

        None: the read would wait for the disk; use `read_cold`. One without room for any batch
        does not. `in_file`: many bytes may stay in their file. Raises OFFSET_OUT_OF_RANGE below
        the log's start and above its end.
        """
        bound = self._bound_of_read(offset, isolation)
        records: memoryview | FileRange | None = _EMPTY
        if offset < bound and (at_least_one or max_bytes > 0):
            records = self._batches.read(offset, max_bytes, bound, at_least_one=at_least_one)
        if isinstance(records, FileRange):
            if in_file and not self._may_be_cut(offset, isolation):
                return self._slice(offset, _EMPTY, isolation)._replace(in_file=records)
            records = memoryview(bytes(records))
        return None if records is None else self._slice(offset, records, isolation)

    async def read_cold(
        self, offset: int, max_bytes: int, isolation: Isolation, *, at_least_one: bool = True
    ) -> Slice:
        """As `read`, waiting for the disk in a thread. Raises PartitionGone also if the
        partition goes during the read.
        """
        while True:
            bound = self._bound_of_read(offset, isolation)
            if offset >= bound:
                return self._slice(offset, _EMPTY, isolation)
            replacements = self._replacements
            try:
                records = await self._batches.read_cold(
                    offset, max_bytes, bound, at_least_one=at_least_one
                )
            except KafkaError:
                # The files' names may have become another partition's.
                if self.is_gone:
                    self._refuse(offset)
                raise
            # The aborted index tells of what is stored now. So bytes of segments that went during
            # the read do not count: below the new start they are out of range, and what the
            # cleaner has replaced is read again.
            self._bound_of_read(offset, isolation)
            if replacements == self._replacements:
                return self._slice(offset, records, isolation)

    def _bound_of_read(self, offset: int, isolation: Isolation) -> int:
        """Return where a read at `offset` ends. Raises PartitionGone, OFFSET_OUT_OF_RANGE."""
        if self.is_gone or not self._ledger.start_offset <= offset <= self._state.end_offset:
            self._refuse(offset)
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def _refuse(self, offset: int) -> NoReturn:
        if self.is_gone:
            raise self.gone
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset}, {self._topic}-{self._partition} has"
            f" {self._ledger.start_offset} to {self._state.end_offset}",
        )

    def _slice(self, offset: int, records: memoryview, isolation: Isolation) -> Slice:
        aborted: list[AbortedTransaction] | None = None
        if isolation is Isolation.READ_COMMITTED:
            index, aborted = self._state.transactions.aborted, []
            if records and self._may_be_cut(offset, isolation):
                # A reader gets the rest with its next fetch.
                stop_offset = index.end_of_markers(offset, _ABORTED_MAX)
                size_bytes, end_offset = self._whole_batches(offset, records, stop_offset)
                records = records[:size_bytes]
                aborted = index.overlapping(offset, end_offset)
        return Slice(
            records,
            self.high_watermark,
            self.last_stable_offset,
            self._ledger.start_offset,
            aborted,
        )

    def _may_be_cut(self, offset: int, isolation: Isolation) -> bool:
        """Whether a slice may end early, since aborted transactions have to be listed."""
        index = self._state.transactions.aborted
        return isolation is Isolation.READ_COMMITTED and index.any_from(offset)

    def _whole_batches(self, offset: int, records: memoryview, stop_offset: int) -> tuple[int, int]:
        try:
            return whole_batches(records, stop_offset)
        except WireError as error:
            problem = f"{self._topic}-{self._partition} at offset {offset}: {error}"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, problem) from None

    async def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> TimestampOffset | None:
        """Return the first record below the isolation's bound whose timestamp is
        `>= timestamp_ms`. Raises PartitionGone."""
        return await self._searched(
            lambda: self._batches.offset_for_timestamp(
                timestamp_ms, self._ledger.start_offset, self.bound(isolation)
            )
        )

    async def max_timestamp_offset(
        self, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> TimestampOffset | None:
        """Return the first record with the largest timestamp below the isolation's bound.

        Raises PartitionGone.
        """
        return await self._searched(lambda: self._batches.max_timestamp(self.bound(isolation)))

    async def _searched(
        self, search: Callable[[], Awaitable[TimestampOffset | None]]
    ) -> TimestampOffset | None:
        """Return what a search finds during which no segment has gone or was replaced.

        Else it may have found a record that has gone, or passed over records of a segment that the
        cleaner has put together with others.
        """
        while True:
            start_offset, replacements = self._ledger.start_offset, self._replacements
            found = await search()
            if self.is_gone:
                raise self.gone
            if (start_offset, replacements) == (self._ledger.start_offset, self._replacements):
                return found

    def iterate_batches_from(self, offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield every batch from the one that contains `offset` to the log's end, in order. Blocks.

        For a coordinator's replay of its shard at start. The caller may keep the bytes.
        """
        return self._batches.iterate(offset)


def items_of(header: BatchHeader, batch: Buffer) -> Iterator[Record | Marker]:
    """Yield the records of a batch, or its marker. Raises WireError."""
    if not header.is_control:
        yield from iterate_records(batch)
        return
    # None: compaction has emptied this batch.
    with suppress(WireError):
        yield parse_marker(batch)
