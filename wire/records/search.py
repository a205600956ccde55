"""Looking for records by their timestamps inside one batch."""

from __future__ import annotations

from typing import NamedTuple

from wire.records.compression import DECOMPRESSED_BYTES_MAX
from wire.records.header import BatchHeader, Buffer
from wire.records.record import iterate_records


class TimestampedOffset(NamedTuple):
    """Where a record is, and its timestamp in ms."""

    offset: int
    timestamp: int


def offset_for_timestamp(
    batch: Buffer, timestamp: int, first_offset: int = 0, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> TimestampedOffset | None:
    """Return the first record at `first_offset` or later that is not older than `timestamp`.

    Decodes only when the header does not rule it out. Raises WireError as `iterate_records` does.
    """
    if BatchHeader.parse(batch).max_timestamp < timestamp:
        return None
    for record in iterate_records(batch, max_bytes):
        if record.timestamp >= timestamp and record.offset >= first_offset:
            return TimestampedOffset(record.offset, record.timestamp)
    return None


def offset_of_max_timestamp(
    batch: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> TimestampedOffset | None:
    """Return the first record that has the batch's latest timestamp; None where none has one.

    By the records, not the header: a producer may have lied in it.
    """
    latest: TimestampedOffset | None = None
    for record in iterate_records(batch, max_bytes):
        if record.timestamp >= 0 and (latest is None or record.timestamp > latest.timestamp):
            latest = TimestampedOffset(record.offset, record.timestamp)
    return latest
