"""Finding records by time inside one batch, or one file, as ListOffsets asks for them."""

from __future__ import annotations

from collections.abc import Iterator

from logstore.disk.files import Buffer
from logstore.segments.ledger import TimestampOffset
from logstore.segments.segment_reads import Readable, scan
from wire.records import DECOMPRESSED_BYTES_MAX, BatchHeader, TimestampType
from wire.records.record import records_of
from wire.records.spans import scan_records, timestamp_of


def may_hold_since(header: BatchHeader, timestamp_ms: int, start_offset: int) -> bool:
    """Return whether the batch, by its header, has a record that `first_record_since` finds."""
    return header.max_timestamp >= timestamp_ms and header.last_offset >= start_offset


def first_record_since(
    batch: Buffer, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> TimestampOffset | None:
    """Return the batch's first record from `start_offset` on with a timestamp `>= timestamp_ms`.

    Under log append time all records of a batch have its max timestamp. Decompresses the batch,
    unless its header says that it holds nothing.
    """
    if not may_hold_since(header, timestamp_ms, start_offset):
        return None
    epoch = header.partition_leader_epoch
    is_whole = header.record_count == header.last_offset_delta + 1  # Compaction took no record.
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME and is_whole:
        return TimestampOffset(max(header.base_offset, start_offset), header.max_timestamp, epoch)
    # Within a batch timestamps need not ascend, so the header alone does not tell which record.
    for offset, timestamp in _places(batch, header):
        if timestamp >= timestamp_ms and offset >= start_offset:
            return TimestampOffset(offset, timestamp, epoch)
    return None


def latest_record(batch: Buffer, header: BatchHeader) -> TimestampOffset:
    """Return the first record that has the batch's max timestamp.

    Under log append time that is the batch's first record, as in Apache Kafka. The last record
    stands in where no record has that timestamp: the header counts.
    """
    epoch = header.partition_leader_epoch
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return TimestampOffset(header.base_offset, header.max_timestamp, epoch)
    for offset, timestamp in _places(batch, header):
        if timestamp == header.max_timestamp:
            return TimestampOffset(offset, timestamp, epoch)
    return TimestampOffset(header.last_offset, header.max_timestamp, epoch)


def latest_in_file(
    file: Readable, position: int, size: int, end_offset: int, known: tuple[int, int]
) -> tuple[int, int]:
    """Return the largest timestamp below `end_offset`, and the last offset of the batch with it.

    `known` is what was the largest before `position` of a segment's file. Blocks.
    """
    timestamp, offset = known
    for _, header, _ in scan(file, position, size, whole=False):
        if header.next_offset > end_offset:
            break
        if header.max_timestamp > timestamp:
            timestamp, offset = header.max_timestamp, header.last_offset
    return timestamp, offset


def _places(batch: Buffer, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield offset and timestamp of each record. Raises WireError where lengths are a lie.

    No header is decoded: those of one record may take a hundred times the memory of the batch.
    """
    body, position = records_of(header, batch, DECOMPRESSED_BYTES_MAX), 0
    for _ in range(header.record_count):
        (span,), position = scan_records(body, position, 1)
        yield header.base_offset + span[2], timestamp_of(header, body, span[0])
