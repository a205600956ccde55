"""What the clients of one history sent, were told and saw: plain data, which the checker judges.

Times are simulated seconds: when a request was sent, and when its answer came. An answer speaks of
a moment in between. A request without an answer may have had its effect, or may still have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.transactions.metadata import TopicPartition
from tests.simulation.history import History
from wire.errors import WireError
from wire.records import (
    BatchHeader,
    Buffer,
    ControlType,
    crc_ok,
    iterate_batches,
    iterate_records,
    parse_marker,
)

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class Seen(NamedTuple):
    """One record as a reader saw it. `value` is None for a tombstone."""

    offset: int
    key: str
    value: str | None


@dataclass(slots=True)
class Sent:
    """One record that an idempotent producer sent, outside of any transaction."""

    partition: TopicPartition
    producer: str
    #: The order in which the producer sent the records of this partition.
    number: int
    key: str
    value: str | None
    #: Where the record is, once the broker has said so.
    offset: int = -1
    told_s: float = float("inf")
    is_refused: bool = False
    #: Before it no broker had it.
    made_s: float = 0.0


@dataclass(slots=True)
class Fetched:
    """One answer to a fetch of one partition."""

    reader: str
    is_committed: bool
    partition: TopicPartition
    asked_s: float
    told_s: float
    from_offset: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: tuple[Seen, ...] = ()


class Trimmed(NamedTuple):
    """A DeleteRecords. `low_watermark` is -1 where no answer came."""

    partition: TopicPartition
    before_offset: int
    low_watermark: int
    told_s: float


class Committed(NamedTuple):
    """An offset that a group has: committed, or fetched, by a member."""

    group_id: str
    partition: TopicPartition
    offset: int
    asked_s: float
    told_s: float
    is_fetch: bool


@dataclass(slots=True)
class Owned:
    """A partition that a group has given to a member."""

    group_id: str
    partition: TopicPartition
    member: str
    #: When the member was told.
    since_s: float
    #: The broker has taken it for the owner still in its answer to a heartbeat of that time.
    confirmed_s: float = -1.0


@dataclass
class Observations:
    """Everything of one history."""

    history: History = field(default_factory=History)
    sent: list[Sent] = field(default_factory=list)
    fetched: list[Fetched] = field(default_factory=list)
    trimmed: list[Trimmed] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    owned: list[Owned] = field(default_factory=list)
    #: By partition: what a reader of each kind finds at the end, when nothing is under way.
    final: dict[tuple[TopicPartition, bool], list[Seen]] = field(default_factory=dict)
    #: Values that a client was told it may not write.
    refused: set[str] = field(default_factory=set)
    #: The topics at the end, where someone has looked.
    topics: set[str] = field(default_factory=set)
    witnesses: list[str] = field(default_factory=list)


class Unreadable(Exception):
    """The bytes of a fetch are no whole batches, or their CRC is wrong."""


def records_of(
    records: Buffer, aborted: Iterator[tuple[int, int]], from_offset: int, *, is_committed: bool
) -> tuple[list[Seen], int]:
    """Return the records that a consumer shows of a fetch's bytes, and the offset behind them.

    `aborted`: (first offset, producer id), as the answer has them. Raises Unreadable.
    """
    seen: list[Seen] = []
    next_offset = from_offset
    waiting = sorted(aborted)
    dead: set[int] = set()
    is_first = True
    for header, batch in _batches(records):
        if not crc_ok(batch):
            raise Unreadable(f"the CRC of the batch at {header.base_offset} is wrong")
        # The first batch may begin before the offset that was asked for.
        if header.next_offset <= next_offset or (not is_first and header.base_offset < next_offset):
            raise Unreadable(f"batch {header.base_offset}..{header.last_offset} at {next_offset}")
        is_first = False
        next_offset = header.next_offset
        while waiting and waiting[0][0] <= header.last_offset:
            dead.add(waiting.pop(0)[1])
        if header.is_control:
            if parse_marker(batch).control_type is ControlType.ABORT:
                dead.discard(header.producer_id)
        elif not (is_committed and header.is_transactional and header.producer_id in dead):
            seen += [
                Seen(record.offset, _text(record.key) or "", _text(record.value))
                for record in iterate_records(batch)
                if record.offset >= from_offset
            ]
    return seen, next_offset


def _batches(records: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    try:
        yield from iterate_batches(records)
    except WireError as error:
        raise Unreadable(str(error)) from error


def _text(data: bytes | memoryview | None) -> str | None:
    return None if data is None else bytes(data).decode()
