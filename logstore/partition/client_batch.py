"""A client's batch on its way into a log: checked, then in the form in which it is stored.

Pure: nothing here knows what the log holds. What a batch must look like at all is
`wire.records.validation`'s; which sequence and epoch may follow is `producer_state`'s. Records are
decoded only where the topic is compacted.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from logstore.partition.log_config import LogConfig
from logstore.partition.producer_state import RememberedBatch
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import (
    ATTRIBUTE_COMPRESSION,
    BatchHeader,
    TimestampType,
    check_timestamps,
    recompressed,
    set_log_append_time,
    validate_batch,
    validate_records,
)

#: The append time of a batch whose records keep their create time.
NO_APPEND_TIME = -1


#: A client's batch that is well-formed and fits its topic, its header, and as of when that is so,
#: ms. Not yet in a log. A plain tuple: each batch makes one, and it lives for one step.
CheckedBatch: TypeAlias = tuple[bytearray | memoryview, BatchHeader, int]


class StoredBatch(NamedTuple):
    """A batch as its topic stores it. `append_time_ms` is -1 under create time."""

    batch: bytearray | memoryview
    header: BatchHeader
    append_time_ms: int


class Appended(NamedTuple):
    """Where a batch went. Answer its producer after `PartitionLog.durable(end_offset)`.

    For a duplicate: where the original is. `log_append_time_ms` is -1 under create time.
    """

    base_offset: int
    last_offset: int
    end_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool


def check_batch(batch: bytearray | memoryview, config: LogConfig, now_ms: int) -> CheckedBatch:
    """Return a client's batch, well-formed and within its topic's settings. Changes nothing.

    Raises KafkaError as `validate_batch` does, and RECORD_LIST_TOO_LARGE (larger than a segment),
    INVALID_TIMESTAMP (out of the topic's bounds), INVALID_RECORD (no key in a compacted topic).
    """
    header = validate_batch(batch, size_bytes_max=config.max_message_bytes)
    if len(batch) > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {len(batch)} bytes, segment.bytes is {config.segment_bytes}",
        )
    if config.message_timestamp_type is TimestampType.CREATE_TIME:
        check_timestamps(
            header,
            now_ms,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
        )
    # As `is_compacted`, without a call: every batch passes here.
    if "compact" in config.cleanup_policy:
        validate_records(batch, key_required=True)
    return batch, header, now_ms


def as_stored(checked: CheckedBatch, config: LogConfig) -> StoredBatch:
    """Return a checked batch as the topic's compression and timestamp type want it stored.

    Writes into the batch where it can. Raises INVALID_RECORD for records that cannot be read,
    MESSAGE_TOO_LARGE if the batch grew beyond what its topic takes.
    """
    batch, header, now_ms = checked
    codec = config.compression
    if codec is not None and header.attributes & ATTRIBUTE_COMPRESSION != codec:
        batch = recompressed(header, batch, codec, config.compression_level)
        if len(batch) > min(config.max_message_bytes, config.segment_bytes):
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {len(batch)} bytes as {codec.name}, at most"
                f" {config.max_message_bytes}",
            )
        header = BatchHeader.parse(batch)
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        set_log_append_time(batch, now_ms)
        return StoredBatch(batch, BatchHeader.parse(batch), now_ms)
    return StoredBatch(batch, header, NO_APPEND_TIME)


def appended_before(original: RememberedBatch, config: LogConfig, start_offset: int) -> Appended:
    """Return the answer to a duplicate: the place of the original."""
    is_append_time = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    return Appended(
        original.base_offset,
        original.last_offset,
        original.last_offset + 1,
        original.max_timestamp if is_append_time else NO_APPEND_TIME,
        start_offset,
        is_duplicate=True,
    )
