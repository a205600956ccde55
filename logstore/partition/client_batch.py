"""A client's batch on its way into a log: checked, then in the form in which it is stored.

Pure: nothing here knows what the log holds. What a batch and its records must look like at all is
`wire.records.validation`'s; which sequence and epoch may follow is `producer_state`'s.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from logstore.partition.log_config import LogConfig
from logstore.partition.producer_state import RememberedBatch
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import (
    ATTRIBUTE_COMPRESSION,
    DECOMPRESSED_BYTES_MAX,
    STEPS_MAX,
    BatchHeader,
    Compression,
    InflatesTooFar,
    RecordRules,
    TakesManySteps,
    TimestampType,
    check_max_timestamp,
    recompressed,
    validate_batch,
    validate_records,
)
from wire.types import INT32_MAX

#: The append time of a batch whose records keep their create time.
NO_APPEND_TIME = -1


class Effort(NamedTuple):
    """What the check of a batch may take before it raises TakesLong."""

    records: int
    steps: int
    stream_bytes: int
    """The compressed bytes of a batch."""
    inflated_bytes: int
    recompressed_bytes: int
    """What is compressed anew by the topic's codec; at a slow level a byte counts eight times."""


#: About two milliseconds, on one core of 2020.
QUICK = Effort(1 << 14, 1 << 14, 64 * 1024, 512 * 1024, 32 * 1024)
#: About a tenth of a second, a second at most: for what ordinary clients send.
ORDINARY = Effort(INT32_MAX, 1 << 20, 4 << 20, 32 << 20, 4 << 20)
#: Whatever a client may send: seconds, for a few hundred bytes of a million headers.
WHOLE = Effort(INT32_MAX, STEPS_MAX, INT32_MAX, DECOMPRESSED_BYTES_MAX, INT32_MAX)

#: Levels above this are slow, zstd's and gzip's: up to a second for a megabyte.
_LEVEL_MAX = 6
_SLOWNESS = 8

#: A client's batch that is well-formed and fits its topic, its header, and as of when that is so,
#: ms. Not yet in a log. A plain tuple: each batch makes one, and it lives for one step.
CheckedBatch: TypeAlias = tuple[bytearray | memoryview, BatchHeader, int]


class TakesLong(Exception):
    """The check of a batch takes more than the effort that was asked for: repeat it with more."""


class Appended(NamedTuple):
    """Where a batch went. Answer its producer after `PartitionLog.durable(end_offset)`.

    For a duplicate: where the original is, and the last of its timestamps. Else
    `log_append_time_ms` is -1 under create time.
    """

    base_offset: int
    last_offset: int
    end_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool


def check_batch(
    batch: bytearray | memoryview, config: LogConfig, now_ms: int, effort: Effort = WHOLE
) -> CheckedBatch:
    """Return a client's batch, valid within its topic's settings, in its topic's codec.

    Changes nothing; any thread may call it. Raises TakesLong beyond `effort`.

    Raises KafkaError as `validate_batch` and `validate_records` do, and RECORD_LIST_TOO_LARGE
    (larger than a segment), INVALID_TIMESTAMP (out of the topic's bounds), INVALID_RECORD (no key
    in a compacted topic), MESSAGE_TOO_LARGE (too large in the topic's codec).
    """
    header = validate_batch(batch, size_bytes_max=config.max_message_bytes)
    codec = header.attributes & ATTRIBUTE_COMPRESSION
    if header.record_count > effort.records or (codec and len(batch) > effort.stream_bytes):
        raise TakesLong
    rules = _rules(config, now_ms, is_compressed=bool(codec))
    try:
        records = validate_records(header, batch, rules, effort.inflated_bytes, effort.steps)
    except (InflatesTooFar, TakesManySteps) as failure:
        if effort is not WHOLE:
            raise TakesLong from None
        raise KafkaError(ErrorCode.INVALID_RECORD, str(failure)) from None
    check_max_timestamp(header, rules)
    if config.compression is not None and codec != config.compression:
        is_slow = (config.compression_level or 0) > _LEVEL_MAX
        if len(records) * (_SLOWNESS if is_slow else 1) > effort.recompressed_bytes:
            raise TakesLong
        batch = _in_codec(config.compression, header, records, config)
        header = BatchHeader.parse(batch)
    # Last, as in Kafka: the topic's codec may have made the batch fit into a segment.
    if len(batch) > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {len(batch)} bytes, segment.bytes is {config.segment_bytes}",
        )
    return batch, header, now_ms


def _rules(config: LogConfig, now_ms: int, *, is_compressed: bool) -> RecordRules:
    """Return what the topic asks of each record of a batch that arrives now."""
    key_required = "compact" in config.cleanup_policy
    # The limit of a whole batch is enough for records that are as long as they look.
    bytes_max = config.max_decompressed_message_bytes if is_compressed else INT32_MAX
    if config.message_timestamp_type is not TimestampType.CREATE_TIME:
        return RecordRules(key_required, record_bytes_max=bytes_max)
    rules = (
        key_required,
        now_ms - config.message_timestamp_before_max_ms,
        now_ms + config.message_timestamp_after_max_ms,
        bytes_max,
    )
    # Not the constructor, which is Python: every batch passes here.
    return tuple.__new__(RecordRules, rules)


def _in_codec(
    codec: Compression, header: BatchHeader, records: bytes | memoryview, config: LogConfig
) -> bytearray:
    batch = recompressed(header, records, codec, config.compression_level)
    if len(batch) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes as {codec.name}, at most {config.max_message_bytes}",
        )
    return batch


def appended_before(original: RememberedBatch, start_offset: int) -> Appended:
    """Return the answer to a duplicate: the place and the time of the original, as in Kafka."""
    return Appended(
        original.base_offset,
        original.last_offset,
        original.last_offset + 1,
        original.max_timestamp,
        start_offset,
        is_duplicate=True,
    )
