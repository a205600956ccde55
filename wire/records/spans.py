"""Records as spans of a batch's bytes, and a batch made again of some of them: for compaction.

Owns how records are dropped from a batch without decoding those that stay: their bytes are taken
over as they are, so offsets, values and headers cannot change. What is kept of a batch's header is
what readers and producer state need: base offset, last offset delta, producer, sequence. The caller
decides which records stay.

The delete horizon of a batch (KIP-534) stands in its base timestamp, bit 6 of the attributes says
so; timestamps stay what they were, as deltas from it. Source: Kafka's MemoryRecords.filterTo.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeAlias

from wire.errors import WireError
from wire.records.compression import compress
from wire.records.header import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_DELETE_HORIZON,
    BATCH_LENGTH_MIN,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    pack_batch,
)
from wire.records.varint import encode_varint, read_varint, read_varlong

#: Where a record's bytes begin (its length included) and end, its offset delta, its key, and
#: whether it has a value. A plain tuple: there is one for every record of a log.
RecordSpan: TypeAlias = tuple[int, int, int, bytes | None, bool]

_INT64_SIGN = 1 << 63


class KeptRecords:
    """Where the records of a batch that stay begin and end.

    Eight bytes for each: a batch may have ten million, whose spans would take gigabytes.
    """

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts = array("I")
        self.ends = array("I")

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, spans: Sequence[RecordSpan]) -> None:
        """Keep these too, which lie behind those before."""
        self.starts.extend([span[0] for span in spans])
        self.ends.extend([span[1] for span in spans])


def scan_records(
    body: bytes | memoryview, position: int, count: int
) -> tuple[list[RecordSpan], int]:
    """Return the next `count` records of decompressed records, and the position after them.

    Reads no value, no header and no timestamp. Raises WireError where lengths are a lie.
    """
    spans: list[RecordSpan] = []
    size = len(body)
    try:
        for _ in range(count):
            start = position
            # The common cases in place; a call for each of them would double the cost.
            byte = body[position]
            if byte < 0x80:
                length, position = byte >> 1, position + 1
            elif body[position + 1] < 0x80:
                length = (byte & 0x7F | body[position + 1] << 7) >> 1
                position += 2
            else:
                length, position = read_varint(body, position)
            end = position + length
            position += 1  # attributes
            while body[position] >= 0x80:  # timestamp delta
                position += 1
            position += 1
            byte = body[position]
            if byte < 0x80:
                delta, position = byte >> 1, position + 1
            else:
                delta, position = read_varint(body, position)
            byte = body[position]
            if byte < 0x80 and not byte & 1:
                length, position = byte >> 1, position + 1
            else:
                length, position = read_varint(body, position)
            key = None
            if length >= 0:
                key = bytes(body[position : position + length])
                position += length
            # A value's length is negative in one case alone: it is null, a varint of 1.
            spans.append((start, end, delta, key, body[position] != 1))
            if not position < end <= size:
                raise WireError(f"a record that claims to end at {end} of {size} bytes")
            position = end
    except IndexError:
        raise WireError("a record goes beyond the records") from None
    return spans, position


def timestamp_of(header: BatchHeader, body: bytes | memoryview, start: int) -> int:
    """Return the timestamp of the record that begins at `start`, ms."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    _, position = read_varint(body, start)
    return header.base_timestamp + read_varlong(body, position + 1)[0]


def batch_of_spans(
    header: BatchHeader,
    body: bytes | memoryview,
    kept: KeptRecords,
    *,
    delete_horizon_ms: int | None,
    max_timestamp: int,
) -> bytearray:
    """Return the batch with these of its records alone, compressed as it was, CRC set.

    `delete_horizon_ms` is written into it; None: the one that it has stays, if any. Offsets are
    what they were, and so is the last offset that the batch accounts for.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    # One behind the other, not joined: the parts of ten million records would take half a gigabyte.
    records: bytes | bytearray = bytearray()
    if delete_horizon_ms is None:
        for start, end in zip(kept.starts, kept.ends, strict=True):
            records += body[start:end]
    else:
        # KIP-534: the horizon takes the place of the base timestamp, so every delta is counted
        # anew.
        shift = base_timestamp - delete_horizon_ms
        for start, end in zip(kept.starts, kept.ends, strict=True):
            records += _shifted(body, start, end, shift)
        attributes |= ATTRIBUTE_DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    if header.attributes & ATTRIBUTE_COMPRESSION:
        records = compress(header.compression, records)
    made = header._replace(
        batch_length=BATCH_LENGTH_MIN + len(records),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(kept),
    )
    return pack_batch(made, records)


def _shifted(body: bytes | memoryview, start: int, end: int, shift: int) -> bytes:
    """Return a record's bytes with its timestamp delta grown by `shift`."""
    _, position = read_varint(body, start)
    delta, rest = read_varlong(body, position + 1)
    # In 64 bits, as readers add it again: a client may have written any base timestamp.
    shifted = (delta + shift + _INT64_SIGN) % (2 * _INT64_SIGN) - _INT64_SIGN
    record = b"".join((body[position : position + 1], encode_varint(shifted), body[rest:end]))
    return encode_varint(len(record)) + record


def empty_batch(header: BatchHeader) -> bytearray:
    """Return the batch without its records: what is left tells of its producer and its offsets."""
    made = header._replace(
        batch_length=BATCH_LENGTH_MIN,
        attributes=header.attributes & ~(ATTRIBUTE_COMPRESSION | ATTRIBUTE_DELETE_HORIZON),
        base_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    return pack_batch(made, b"")


def batch_without_records(base_offset: int, end_offset: int, leader_epoch: int = -1) -> bytearray:
    """Return a batch that stands for the offsets [base_offset, end_offset), of no producer."""
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=BATCH_LENGTH_MIN,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=end_offset - base_offset - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )
    return pack_batch(header, b"")
