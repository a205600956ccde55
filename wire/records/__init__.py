"""Record batches (magic 2): header view, CRC, records, transaction markers, compression."""

from wire.records.compression import DECOMPRESSED_BYTES_MAX, InflatesTooFar
from wire.records.control import (
    ControlType,
    Marker,
    build_marker,
    parse_marker,
    unplaced_marker,
)
from wire.records.header import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    Compression,
    TimestampType,
    crc_ok,
    iterate_batches,
    next_sequence,
    place,
    placed,
    set_log_append_time,
    whole_batches,
)
from wire.records.record import (
    Record,
    SimpleRecord,
    build_batch,
    iterate_records,
    packed_batch,
    recompressed,
)
from wire.records.validation import check_max_timestamp, validate_batch, validate_records
from wire.records.walk import STEPS_MAX, RecordRules, TakesManySteps

__all__ = [
    "ATTRIBUTE_COMPRESSION",
    "ATTRIBUTE_TRANSACTIONAL",
    "BATCH_OVERHEAD",
    "DECOMPRESSED_BYTES_MAX",
    "STEPS_MAX",
    "BatchHeader",
    "Buffer",
    "Compression",
    "ControlType",
    "InflatesTooFar",
    "Marker",
    "Record",
    "RecordRules",
    "SimpleRecord",
    "TakesManySteps",
    "TimestampType",
    "build_batch",
    "build_marker",
    "check_max_timestamp",
    "crc_ok",
    "whole_batches",
    "iterate_batches",
    "iterate_records",
    "next_sequence",
    "parse_marker",
    "place",
    "packed_batch",
    "placed",
    "recompressed",
    "set_log_append_time",
    "unplaced_marker",
    "validate_batch",
    "validate_records",
]
