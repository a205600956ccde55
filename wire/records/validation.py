"""What a producer may send: one whole batch that a broker can append as it stands.

Checks what the header says, in the order in which Apache Kafka does (ProduceRequest, UnifiedLog,
LogValidator), and decodes no record. `validate_records` decodes, where a rule is about records.
Where Kafka repairs a batch (bytes after it, a wrong max timestamp) or answers UNKNOWN_SERVER_ERROR
(an unknown codec, garbage instead of a compressed stream), a producer is told here.
"""

from __future__ import annotations

from struct import Struct

from wire.error_code import ErrorCode
from wire.errors import KafkaError, RecordsRefused, WireError
from wire.records.compression import DECOMPRESSED_BYTES_MAX, begins_like
from wire.records.header import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TIMESTAMP_TYPE,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_OVERHEAD,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    computed_crc,
)
from wire.records.record import iterate_records

_LENGTH = Struct(">8xi")
_MAGIC_AT = 16
#: The shortest message that any format ever had, counted from byte 12.
_LENGTH_MIN_OF_ANY_MAGIC = 14


def validate_batch(records: Buffer | None, *, size_bytes_max: int | None = None) -> BatchHeader:
    """Return the header of the one batch that `records` is; a KafkaError says why it is none.

    `size_bytes_max` is the topic's `max.message.bytes`. CORRUPT_MESSAGE, which clients retry, says
    that bytes were damaged on their way; INVALID_RECORD, MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE and INVALID_TIMESTAMP that they never were right.
    """
    header = _one_batch(records)
    assert records is not None
    size_bytes = header.size_bytes
    if header.base_offset != 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"base offset {header.base_offset}, 0 from a producer"
        )
    if size_bytes_max is not None and size_bytes > size_bytes_max:
        detail = f"a batch of {size_bytes} bytes, at most {size_bytes_max}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, detail)
    if header.crc != computed_crc(records, 0, size_bytes):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the CRC does not match")
    _check_counts(header)
    _check_producer(header)
    if header.attributes & ATTRIBUTE_TIMESTAMP_TYPE:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "log append time is for the broker to set")
    if header.attributes & ATTRIBUTE_COMPRESSION:
        _check_codec(header, records)
    return header


def _one_batch(records: Buffer | None) -> BatchHeader:
    if records is None or (available_bytes := len(records)) < LENGTH_OVERHEAD:
        raise KafkaError(ErrorCode.INVALID_RECORD, "no record batch")
    (batch_length,) = _LENGTH.unpack_from(records)
    if batch_length < _LENGTH_MIN_OF_ANY_MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {batch_length}")
    size_bytes = LENGTH_OVERHEAD + batch_length
    magic = records[_MAGIC_AT] if available_bytes > _MAGIC_AT else MAGIC
    if magic > MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"magic {magic}")
    if available_bytes < size_bytes:
        detail = f"{available_bytes} bytes of a batch of {size_bytes}"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if magic < MAGIC:
        detail = f"a batch of magic {magic}; only magic {MAGIC} is taken"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if size_bytes < BATCH_OVERHEAD:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {batch_length}")
    if available_bytes > size_bytes:
        detail = f"{available_bytes - size_bytes} bytes after the one batch of a partition"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    return BatchHeader.parse(records)


def _check_counts(header: BatchHeader) -> None:
    if header.record_count <= 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"record count {header.record_count}")
    if header.last_offset_delta != header.record_count - 1:
        detail = f"{header.record_count} records, last offset delta {header.last_offset_delta}"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)


def _check_producer(header: BatchHeader) -> None:
    attributes = header.attributes
    if attributes & ATTRIBUTE_CONTROL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "control records are for brokers to write")
    if attributes & ATTRIBUTE_DELETE_HORIZON:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a delete horizon is for brokers to write")
    if header.producer_id < NO_PRODUCER_ID:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"producer id {header.producer_id}")
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            detail = (
                f"producer id {header.producer_id} with epoch {header.producer_epoch}"
                f" and base sequence {header.base_sequence}"
            )
            raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    elif attributes & ATTRIBUTE_TRANSACTIONAL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch without producer id")


def _check_codec(header: BatchHeader, records: Buffer) -> None:
    try:
        codec = header.compression
    except WireError as failure:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(failure)) from None
    if not begins_like(codec, memoryview(records)[BATCH_OVERHEAD:]):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"records that are no {codec.name} stream")


def check_timestamps(
    header: BatchHeader, now_ms: int, *, before_max_ms: int, after_max_ms: int
) -> None:
    """Raise INVALID_TIMESTAMP where the first or the latest record is too old or too far ahead.

    The bounds are `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`,
    inclusive. A record without a timestamp (-1) is never refused. Records between are not looked
    at. Source: KIP-937.
    """
    for timestamp in (header.base_timestamp, header.max_timestamp):
        if timestamp == NO_TIMESTAMP:
            continue
        if timestamp < 0 or not -after_max_ms <= now_ms - timestamp <= before_max_ms:
            detail = (
                f"timestamp {timestamp} at {now_ms}: at most {before_max_ms} ms before"
                f" and {after_max_ms} ms after are allowed"
            )
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, detail)


def validate_records(
    batch: Buffer, *, key_required: bool = False, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> None:
    """Decode the records of a batch that `validate_batch` has passed, or raise INVALID_RECORD.

    `key_required` is the rule of compacted topics: RecordsRefused names those that break it. Costs
    some microseconds per record.
    """
    base_offset = BatchHeader.parse(batch).base_offset
    without_key = []
    try:
        for delta, record in enumerate(iterate_records(batch, max_bytes)):
            if record.offset != base_offset + delta:
                detail = f"record {delta} has offset delta {record.offset - base_offset}"
                raise KafkaError(ErrorCode.INVALID_RECORD, detail)
            if key_required and record.key is None:
                without_key.append(delta)
    except WireError as failure:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(failure)) from None
    if without_key:
        raise RecordsRefused(without_key, "Compacted topic cannot accept message without key")
