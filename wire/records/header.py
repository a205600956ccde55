"""The header of a record batch (magic 2), read and placed without touching its records.

Owns: the 61 bytes before the records, the CRC, finding batches in a buffer. Not: records
(`record`), what a producer may send (`validation`).
Source: KIP-98, the protocol guide's "Record Batch".

    bytes   0-8    base offset            int64
            8-12   batch length           int32, counted from byte 12
           12-16   partition leader epoch int32
           16      magic                  int8, 2
           17-21   CRC-32C                uint32, over bytes 21 to the end
           21-23   attributes             int16: bits 0-2 compression, 3 timestamp type,
                                          4 transactional, 5 control, 6 the base timestamp is a
                                          delete horizon
           23-27   last offset delta      int32
           27-35   base timestamp         int64, ms
           35-43   max timestamp          int64, ms
           43-51   producer id            int64, -1: none
           51-53   producer epoch         int16
           53-57   base sequence          int32
           57-61   record count           int32
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from wire.errors import WireError
from wire.types import Buffer

BATCH_OVERHEAD = 61
#: Bytes before those that `batch_length` counts.
LENGTH_OVERHEAD = 12
MAGIC = 2
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

ATTRIBUTE_COMPRESSION = 0x07
ATTRIBUTE_TIMESTAMP_TYPE = 0x08
ATTRIBUTE_TRANSACTIONAL = 0x10
ATTRIBUTE_CONTROL = 0x20
ATTRIBUTE_DELETE_HORIZON = 0x40

HEADER = Struct(">qiibIhiqqqhii")
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_ATTRIBUTES = Struct(">h")
_PLACE = Struct(">qii")
_SPAN = Struct(">qi11xi")

#: `read_span(buffer, position)` returns (base offset, batch length, last offset delta): what a walk
#: over many batches needs of each, without the cost of a `BatchHeader`.
read_span = _SPAN.unpack_from
#: Bytes of a batch that `read_span` reads.
SPAN_BYTES = _SPAN.size

MAGIC_AT = 16
_LENGTH_AT = 8
_LEADER_EPOCH_AT = 12
_CRC_AT = 17
_MAX_TIMESTAMP_AT = 35
#: The CRC covers the batch from its attributes on.
CRC_COVERS_FROM = 21
BATCH_LENGTH_MIN = BATCH_OVERHEAD - LENGTH_OVERHEAD
_SEQUENCE_MAX = 2**31 - 1


class Compression(IntEnum):
    """The codec of a batch's records: bits 0-2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """The source of the records' timestamps: the producer, or the broker at the append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


#: The fields of `BatchHeader`, in its order.
HeaderFields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]

# By position, because calling an enum is slow, and every batch asks.
_CODECS = tuple(Compression)
_TIMESTAMP_TYPES = tuple(TimestampType)


class BatchHeader(NamedTuple):
    """The fixed fields of one batch, as they stand in its first 61 bytes."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def parse(cls, buffer: Buffer, position: int = 0) -> BatchHeader:
        """Return the header at `position`; the records after it need not be in the buffer.

        Raises WireError when fewer than 61 bytes remain or the batch claims to be shorter than its
        own header. `validate_batch` checks magic and content. If the magic is not 2, no other
        field means anything.
        """
        if position < 0 or len(buffer) - position < BATCH_OVERHEAD:
            raise WireError(f"a header of {len(buffer) - position} bytes, not {BATCH_OVERHEAD}")
        # Not `_make`, which counts the fields anew: there are as many as in the Struct.
        header = tuple.__new__(cls, HEADER.unpack_from(buffer, position))
        if header.batch_length < BATCH_LENGTH_MIN:
            raise WireError(f"batch length {header.batch_length}, at least {BATCH_LENGTH_MIN}")
        return header

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return LENGTH_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, wrapped to int32; -1 where the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return next_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def is_idempotent(self) -> bool:
        """Whether the batch has a producer id. A coordinator's own batches have no sequence."""
        return self.producer_id >= 0

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_DELETE_HORIZON)

    @property
    def compression(self) -> Compression:
        """Raises WireError for a codec that Kafka does not have."""
        codec = self.attributes & ATTRIBUTE_COMPRESSION
        if codec >= len(_CODECS):
            raise WireError(f"unknown compression codec {codec}")
        return _CODECS[codec]

    @property
    def timestamp_type(self) -> TimestampType:
        return _TIMESTAMP_TYPES[(self.attributes & ATTRIBUTE_TIMESTAMP_TYPE) >> 3]


def next_sequence(sequence: int, increment: int) -> int:
    """Return the sequence `increment` records after `sequence`; 2**31 - 1 is followed by 0."""
    return (sequence + increment) & _SEQUENCE_MAX


def is_intact(header: BatchHeader, batch: memoryview) -> bool:
    """Return whether the CRC-32C of a whole batch is the one that its header says."""
    return crc32c(batch[CRC_COVERS_FROM:]) == header.crc


def crc_ok(buffer: Buffer) -> bool:
    """Whether `buffer` begins with a whole batch whose CRC is right, whatever follows it."""
    if len(buffer) < BATCH_OVERHEAD:
        return False
    (batch_length,) = _INT32.unpack_from(buffer, _LENGTH_AT)
    if not BATCH_LENGTH_MIN <= batch_length <= len(buffer) - LENGTH_OVERHEAD:
        return False
    (crc,) = _UINT32.unpack_from(buffer, _CRC_AT)
    # A view, so that nothing is copied.
    covered = memoryview(buffer)[CRC_COVERS_FROM : LENGTH_OVERHEAD + batch_length]
    return bool(crc32c(covered) == crc)


def place(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write the batch's place in the log into its (writable) bytes. The CRC does not cover them."""
    _INT64.pack_into(batch, 0, base_offset)
    _INT32.pack_into(batch, _LEADER_EPOCH_AT, leader_epoch)


def placed(
    batch: bytearray | memoryview, header: BatchHeader, base_offset: int, leader_epoch: int
) -> BatchHeader:
    """Do as `place`; return the batch's new header. `header` is the batch's old one."""
    _PLACE.pack_into(batch, 0, base_offset, header.batch_length, leader_epoch)
    return tuple.__new__(BatchHeader, (base_offset, header.batch_length, leader_epoch, *header[3:]))


OFFSET_MAX = 2**63 - 1
#: Above every offset of a log.
ABOVE_OFFSETS = OFFSET_MAX + 1


def whole_batches(records: Buffer, stop_offset: int = ABOVE_OFFSETS) -> tuple[int, int]:
    """Return the size in bytes of the whole batches that `records` begins with, and the offset
    after them. The first one that reaches `stop_offset` is the last one.

    That is all of what a ledger returns, unless a disk or another program has changed a batch
    behind the first one. Raises WireError where the first one is not whole.
    """
    position, size = 0, len(records)
    whole_bytes = end_offset = 0
    while end_offset < stop_offset and position + SPAN_BYTES <= size:
        base_offset, length, delta = read_span(records, position)
        position += LENGTH_OVERHEAD + length
        if length < BATCH_LENGTH_MIN or delta < 0 or position > size:
            break
        whole_bytes, end_offset = position, base_offset + delta + 1
    if not whole_bytes:
        raise WireError("not one whole batch")
    return whole_bytes, end_offset


def set_log_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Make the (writable) batch one of LOG_APPEND_TIME, appended now, and renew its CRC.

    The records' own timestamps stay as they are: readers take the max timestamp for each of them.
    """
    header = BatchHeader.parse(batch)
    attributes = header.attributes | ATTRIBUTE_TIMESTAMP_TYPE
    _ATTRIBUTES.pack_into(batch, CRC_COVERS_FROM, attributes)
    _INT64.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    set_crc(batch)


def set_crc(batch: bytearray | memoryview) -> None:
    """Write the CRC of one whole (writable) batch into it."""
    _UINT32.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))


def iterate_batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each whole batch of the buffer with its bytes, in order, up to an incomplete tail.

    Raises WireError at a batch whose length is a lie; it checks neither magic nor CRC.
    """
    view = memoryview(buffer)
    position = 0
    while len(view) - position >= BATCH_OVERHEAD:
        header = BatchHeader.parse(view, position)
        end = position + header.size_bytes
        if end > len(view):
            return
        yield header, view[position:end]
        position = end


def pack_batch(header: HeaderFields, body: Buffer) -> bytearray:
    """Return the batch that `packed` makes, by itself."""
    return packed(header, body)[0]


def packed(header: HeaderFields, body: Buffer) -> tuple[bytearray, BatchHeader]:
    """Return a batch of this header and these (encoded, compressed) records, with its CRC set; and
    its header with that CRC."""
    batch = bytearray(HEADER.pack(*header))
    batch += body
    crc = crc32c(memoryview(batch)[CRC_COVERS_FROM:])
    _UINT32.pack_into(batch, _CRC_AT, crc)
    return batch, tuple.__new__(BatchHeader, (*header[:4], crc, *header[5:]))
