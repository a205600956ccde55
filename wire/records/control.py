"""Control records: the markers that end a transaction in a partition.

A marker is a batch of one record, control and transactional, with no sequence:

    key    version int16, 0 | type int16: 0 abort, 1 commit
    value  version int16, 0 | coordinator epoch int32

Source: KIP-98, Kafka's EndTxnMarker schema.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from wire.errors import WireError
from wire.records.header import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_OVERHEAD,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_SEQUENCE,
    BatchHeader,
    packed,
    place,
)
from wire.records.record import iterate_records
from wire.types import Buffer

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
#: A marker's one record: length 16, attributes and deltas 0, a key of 4 bytes, a value of 6, no
#: headers (a length's zigzag varint is twice the length).
_RECORD = Struct(">bbbbbhhbhib")
#: How that record ends: the coordinator's epoch, and no headers.
_END = Struct(">ib")
_MARKER_BYTES = BATCH_OVERHEAD + _RECORD.size
_EPOCH_AT = _MARKER_BYTES - _END.size
_MARKER_VERSION = 0
#: No marker's record needs more than this, compressed or not.
_MARKER_BYTES_MAX = 4096


class ControlType(IntEnum):
    """The outcome that a marker gives its producer's open transaction."""

    ABORT = 0
    COMMIT = 1


#: What stands in a marker's record before its coordinator's epoch.
_OUTCOMES = {
    _RECORD.pack(32, 0, 0, 0, 8, 0, control_type, 12, _MARKER_VERSION, 0, 0)[: -_END.size]: (
        control_type
    )
    for control_type in ControlType
}


class Marker(NamedTuple):
    """The content of a marker's one record."""

    control_type: ControlType
    coordinator_epoch: int


def build_marker(
    *,
    base_offset: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    commit: bool,
    timestamp_ms: int,
    leader_epoch: int = 0,
) -> bytearray:
    """Return the batch that ends the producer's transaction, CRC set."""
    made, _ = unplaced_marker(producer_id, producer_epoch, coordinator_epoch, commit, timestamp_ms)
    batch = bytearray(made)
    place(batch, base_offset, leader_epoch)
    return batch


@lru_cache(maxsize=16)
def unplaced_marker(
    producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, timestamp_ms: int
) -> tuple[bytes, BatchHeader]:
    """Return a marker that has no place in a log yet, CRC set, and its header.

    A copy with its place written in (`placed`) is a marker. Cached, because a transaction's markers
    in hundreds of partitions differ in nothing else, and the CRC does not cover the place.
    """
    header = (
        0,
        _MARKER_BYTES - LENGTH_OVERHEAD,
        0,
        MAGIC,
        0,  # the CRC, which is set at the end
        ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL,
        0,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        NO_SEQUENCE,
        1,
    )
    control_type = ControlType.COMMIT if commit else ControlType.ABORT
    record = _RECORD.pack(
        32, 0, 0, 0, 8, 0, control_type, 12, _MARKER_VERSION, coordinator_epoch, 0
    )
    batch, placeless = packed(header, record)
    return bytes(batch), placeless


def _is_plain(header: BatchHeader) -> bool:
    """Return whether the batch has one record, not compressed."""
    is_compressed = header.attributes & ATTRIBUTE_COMPRESSION
    return header.magic == MAGIC and header.record_count == 1 and not is_compressed


def parse_marker(batch: Buffer) -> Marker:
    """Return what the control batch at the buffer's start says.

    Later versions of key and value are read by the fields known here, as Kafka reads them.
    Raises WireError when it is no commit or abort marker.
    """
    header = BatchHeader.parse(batch)
    if not header.is_control:
        raise WireError("no control batch")
    if header.size_bytes == _MARKER_BYTES <= len(batch) and _is_plain(header):
        # As brokers write every marker. A start reads thousands of them.
        control_type = _OUTCOMES.get(bytes(batch[BATCH_OVERHEAD:_EPOCH_AT]))
        coordinator_epoch, header_count = _END.unpack_from(batch, _EPOCH_AT)
        if control_type is not None and header_count == 0:
            return Marker(control_type, coordinator_epoch)
    records = list(iterate_records(batch, _MARKER_BYTES_MAX))
    if len(records) != 1:
        raise WireError(f"a marker has one record, not {len(records)}")
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size or value is None or len(value) < _VALUE.size:
        raise WireError("a marker's key or value is too short")
    key_version, control_type = _KEY.unpack_from(key)
    value_version, coordinator_epoch = _VALUE.unpack_from(value)
    # Newer versions only add fields, so they pass.
    if min(key_version, value_version) < _MARKER_VERSION:
        raise WireError(f"marker versions {key_version} and {value_version}")
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise WireError(f"control record of type {control_type} is no transaction marker")
    return Marker(ControlType(control_type), coordinator_epoch)
