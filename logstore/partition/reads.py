"""What a reader of a partition is given: whole batches up to its bound, and the three watermarks.

The bound is the high watermark, or the last stable offset under read_committed; both are
exclusive. A fetch over aborted data alone still returns its bytes, so that the reader's position
advances.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from logstore.partition.log_config import LogConfig
from logstore.partition.producer_state import RememberedBatch
from logstore.segments.aborted_index import AbortedIndex, AbortedTransaction
from logstore.sync.durable_end import LedgerClosed
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.records import BatchHeader, Marker, Record, TimestampType, iterate_records, parse_marker

_PLACE = Struct(">qi")
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_AT = 23


class Isolation(IntEnum):
    """Fetch's and ListOffsets' isolation level."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class PartitionDeleted(KafkaError, LedgerClosed):
    """The partition is deleted: UNKNOWN_TOPIC_OR_PARTITION to whoever asks or waits."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is deleted")


class Slice(NamedTuple):
    """One partition's answer to a fetch. `records` are whole batches, the first of which contains
    the fetch offset; empty at the bound.

    `aborted` is None under read_uncommitted.
    """

    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[AbortedTransaction] | None


class Appended(NamedTuple):
    """Where a batch went. Answer its producer after `durable(end_offset)`.

    For a duplicate: where the original is. `log_append_time_ms` is -1 under create time.
    """

    base_offset: int
    last_offset: int
    end_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool


def appended_before(original: RememberedBatch, config: LogConfig, start_offset: int) -> Appended:
    """Answer a duplicate with the place of the original."""
    append_time_ms = -1
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        append_time_ms = original.max_timestamp
    return Appended(
        original.base_offset,
        original.last_offset,
        original.last_offset + 1,
        append_time_ms,
        start_offset,
        is_duplicate=True,
    )


def aborted_in(aborted: AbortedIndex, offset: int, records: memoryview) -> list[AbortedTransaction]:
    """The aborted transactions that overlap [offset, end of these whole batches)."""
    if not records or not aborted.any_from(offset):
        return []
    return aborted.overlapping(offset, end_of(records))


def end_of(records: memoryview) -> int:
    """The offset after the last of these whole batches."""
    position, end, size = 0, 0, len(records)
    while position < size:
        end = position
        _, length = _PLACE.unpack_from(records, position)
        position += length + 12
    (base_offset, _) = _PLACE.unpack_from(records, end)
    (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, end + _LAST_OFFSET_DELTA_AT)
    return int(base_offset + delta + 1)


def records_and_markers(
    batches: Iterator[tuple[BatchHeader, memoryview]], offset: int
) -> Iterator[tuple[BatchHeader, Record | Marker]]:
    """Yield every record and marker of the batches from `offset` on, in order."""
    for header, batch in batches:
        if header.is_control:
            try:
                yield header, parse_marker(batch)
            except WireError:
                continue  # Emptied by compaction.
        else:
            for record in iterate_records(batch):
                if record.offset >= offset:
                    yield header, record
