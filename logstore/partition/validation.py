"""What a client may append to one partition: a batch checked against that topic's settings.

What a batch must look like at all is `wire.records.validation`'s; which sequence and epoch may
follow is `producer_state`'s. Records are decoded only where the topic is compacted.
"""

from __future__ import annotations

from logstore.partition.log_config import LogConfig
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import BatchHeader, Compression, TimestampType
from wire.records.header import Buffer
from wire.records.record import recompressed
from wire.records.validation import check_timestamps, validate_batch, validate_records


def check_batch(batch: Buffer, config: LogConfig, now_ms: int) -> BatchHeader:
    """Return the header of a client's batch that may be appended; nothing is changed.

    Raises KafkaError as `validate_batch` does, and RECORD_LIST_TOO_LARGE (larger than a segment),
    INVALID_TIMESTAMP (out of the topic's bounds), INVALID_RECORD (no key in a compacted topic).
    """
    header = validate_batch(batch, size_bytes_max=config.max_message_bytes)
    if header.batch_length + 12 > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {header.size_bytes} bytes, segment.bytes is {config.segment_bytes}",
        )
    if config.message_timestamp_type is TimestampType.CREATE_TIME:
        check_timestamps(
            header,
            now_ms,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
        )
    if config.is_compacted:
        validate_records(batch, key_required=True)
    return header


def stored_as(
    codec: Compression, batch: Buffer, header: BatchHeader, config: LogConfig
) -> tuple[bytearray, BatchHeader]:
    """Return a checked batch as the topic's `compression.type` has it stored.

    Raises INVALID_RECORD for records that cannot be read, MESSAGE_TOO_LARGE if it grew too large.
    """
    stored = recompressed(header, batch, codec, config.compression_level)
    if len(stored) > min(config.max_message_bytes, config.segment_bytes):
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(stored)} bytes as {codec.name}, at most {config.max_message_bytes}",
        )
    return stored, BatchHeader.parse(stored)
