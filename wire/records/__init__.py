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
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_OVERHEAD,
    BatchHeader,
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
    EncodedRecords,
    Record,
    SimpleRecord,
    build_batch,
    encode_records,
    iterate_records,
    packed_batch,
    recompressed,
)
from wire.records.validation import check_max_timestamp, validate_batch, validate_records
from wire.records.walk import REFUSED_NAMED_MAX, STEPS_MAX, RecordRules, TakesManySteps
from wire.types import Buffer

__all__ = [
    "ATTRIBUTE_COMPRESSION",
    "ATTRIBUTE_CONTROL",
    "ATTRIBUTE_TRANSACTIONAL",
    "BATCH_OVERHEAD",
    "DECOMPRESSED_BYTES_MAX",
    "REFUSED_NAMED_MAX",
    "STEPS_MAX",
    "BatchHeader",
    "Buffer",
    "Compression",
    "ControlType",
    "EncodedRecords",
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
    "encode_records",
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
