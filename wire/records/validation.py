"""What a producer may send: one whole batch that a broker can append as it stands.

Checks the header in the order in which Apache Kafka does (ProduceRequest, UnifiedLog, LogValidator)
and the records by `walk`. Kafka repairs some batches (bytes after the batch, a wrong max
timestamp), stores some that no consumer reads well (offset deltas with gaps, lengths that lie
inside a compressed stream), and answers UNKNOWN_SERVER_ERROR to others (an unknown codec, a
compressed stream that is rotten); here the producer is told.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.records.compression import DECOMPRESSED_BYTES_MAX, InflatesTooFar, begins_like
from wire.records.header import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TIMESTAMP_TYPE,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_OVERHEAD,
    CRC_COVERS_FROM,
    HEADER,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
)
from wire.records.record import records_of
from wire.records.walk import NO_RULES, STEPS_MAX, RecordRules, check_records
from wire.types import Buffer

_LENGTH = Struct(">8xi")
#: The shortest message that any format ever had, counted from byte 12.
_LENGTH_MIN_OF_ANY_MAGIC = 14
_FOR_BROKERS = ATTRIBUTE_CONTROL | ATTRIBUTE_DELETE_HORIZON


def validate_batch(records: Buffer | None, *, size_bytes_max: int | None = None) -> BatchHeader:
    """Return the header of the one batch in `records`. Raises KafkaError for anything else.

    `size_bytes_max` is the topic's `max.message.bytes`. CORRUPT_MESSAGE, which clients retry, says
    that bytes were damaged on their way. INVALID_RECORD, MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE and INVALID_TIMESTAMP say that the batch was never valid.
    """
    if records is None or (size_bytes := len(records)) < BATCH_OVERHEAD:
        raise _refusal_of_frame(records)
    # Every produced batch passes here: not `BatchHeader.parse`, which is one more call. And fields
    # of a named tuple, one by one, cost ten times as much as all of a tuple at once.
    fields = HEADER.unpack_from(records)
    base_offset, length, _, magic, crc, attributes, delta, _, _, producer_id, _, _, count = fields
    header = tuple.__new__(BatchHeader, fields)
    # The cheap test for the usual batch; which rule is broken is found out only where one is.
    if magic != MAGIC or length != size_bytes - LENGTH_OVERHEAD:
        raise _refusal_of_frame(records)
    if base_offset != 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"base offset {base_offset}, 0 from a producer")
    if size_bytes_max is not None and size_bytes > size_bytes_max:
        detail = f"a batch of {size_bytes} bytes, at most {size_bytes_max}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, detail)
    # After the frame, before the fields: fields of a damaged batch mean nothing.
    if crc != crc32c(memoryview(records)[CRC_COVERS_FROM:]):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the CRC does not match")
    # Nearly every batch is a plain one without flaws: no call for it.
    if (
        count <= 0
        or delta != count - 1
        or attributes & ~ATTRIBUTE_COMPRESSION
        or producer_id != NO_PRODUCER_ID
    ):
        _check_fields(header)
    if attributes & ATTRIBUTE_COMPRESSION:
        _check_codec(header, records)
    return header


def _refusal_of_frame(records: Buffer | None) -> KafkaError:
    """Return why these bytes are not one whole batch of magic 2, by the first rule broken."""
    if records is None or (available_bytes := len(records)) < LENGTH_OVERHEAD:
        return KafkaError(ErrorCode.INVALID_RECORD, "no record batch")
    (batch_length,) = _LENGTH.unpack_from(records)
    if batch_length < _LENGTH_MIN_OF_ANY_MAGIC:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {batch_length}")
    size_bytes = LENGTH_OVERHEAD + batch_length
    magic = records[MAGIC_AT] if available_bytes > MAGIC_AT else MAGIC
    if magic > MAGIC:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"magic {magic}")
    if available_bytes < size_bytes:
        detail = f"{available_bytes} bytes of a batch of {size_bytes}"
        return KafkaError(ErrorCode.INVALID_RECORD, detail)
    if magic < MAGIC:
        detail = f"a batch of magic {magic}; only magic {MAGIC} is taken"
        return KafkaError(ErrorCode.INVALID_RECORD, detail)
    if size_bytes < BATCH_OVERHEAD:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {batch_length}")
    assert available_bytes > size_bytes, "one whole batch of magic 2 is no refusal"
    detail = f"{available_bytes - size_bytes} bytes after the one batch of a partition"
    return KafkaError(ErrorCode.INVALID_RECORD, detail)


def _check_fields(header: BatchHeader) -> None:
    """Raise KafkaError for a header that no producer may send, by the first rule broken."""
    attributes = header.attributes
    if header.record_count <= 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"record count {header.record_count}")
    # Only compaction makes gaps between offsets. A producer's gap would be a lie about its count.
    if header.last_offset_delta != header.record_count - 1:
        detail = f"{header.record_count} records, last offset delta {header.last_offset_delta}"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if attributes & _FOR_BROKERS:
        name = "control records" if attributes & ATTRIBUTE_CONTROL else "delete horizons"
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{name} are for brokers to write")
    if header.producer_id != NO_PRODUCER_ID:
        _check_producer(header)
    elif attributes & ATTRIBUTE_TRANSACTIONAL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch without producer id")
    if attributes & ATTRIBUTE_TIMESTAMP_TYPE:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "log append time is for the broker to set")


def _check_producer(header: BatchHeader) -> None:
    if header.producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"producer id {header.producer_id}")
    # Without a sequence a retry of this batch could not be told from new records.
    if header.base_sequence < 0 or header.producer_epoch < 0:
        detail = (
            f"producer id {header.producer_id} with epoch {header.producer_epoch}"
            f" and base sequence {header.base_sequence}"
        )
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)


def _check_codec(header: BatchHeader, records: Buffer) -> None:
    try:
        codec = header.compression
    except WireError as failure:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(failure)) from None
    # A quick look for garbage: a batch is not decompressed only to be checked.
    if not begins_like(codec, memoryview(records)[BATCH_OVERHEAD:]):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"records that are no {codec.name} stream")


def check_max_timestamp(header: BatchHeader, rules: RecordRules) -> None:
    """Raise INVALID_TIMESTAMP where the header tells of a timestamp that no record may have.

    Kafka writes the records' own maximum into the header instead.
    """
    latest = header.max_timestamp
    if latest != NO_TIMESTAMP and not rules.timestamp_min <= latest <= rules.timestamp_max:
        detail = (
            f"max timestamp {latest} is not within [{rules.timestamp_min}, {rules.timestamp_max}]"
        )
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, detail)


def validate_records(
    header: BatchHeader,
    batch: Buffer,
    rules: RecordRules = NO_RULES,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
    steps_max: int = STEPS_MAX,
) -> bytes | memoryview:
    """Return the records, decompressed, of a batch that `validate_batch` has passed.

    Raises KafkaError as `check_records` does, INVALID_RECORD for a stream that cannot be read to
    its end, InflatesTooFar beyond `max_bytes`, and TakesManySteps beyond `steps_max`.
    """
    if not header.attributes & ATTRIBUTE_COMPRESSION:
        # No copy: at a gigabyte a second it would cost more than the check.
        records = memoryview(batch)[BATCH_OVERHEAD:]
        check_records(records, header, rules, steps_max)
        return records
    try:
        body = records_of(header, batch, max_bytes)
    except InflatesTooFar:
        raise
    except WireError as failure:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(failure)) from None
    check_records(body, header, rules, steps_max)
    return body
