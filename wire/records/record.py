"""The records inside a batch: decoding, building, compressing again. Every length is checked.

    record     length varint (of all that follows) | attributes int8, unused |
               timestamp delta varlong | offset delta varint | key | value |
               header count varint | headers
    key, value length varint, -1: null | bytes
    header     key length varint | key utf-8 | value length varint, -1: null | bytes

Source: KIP-98, the protocol guide's "Record".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from wire.errors import WireError
from wire.records.compression import DECOMPRESSED_BYTES_MAX, compress, decompress
from wire.records.header import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_LENGTH_MIN,
    BATCH_OVERHEAD,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Compression,
    TimestampType,
    pack_batch,
    packed,
)
from wire.records.varint import VARINTS, read_varint, read_varlong
from wire.types import Buffer

RecordHeader = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record as a consumer sees it: absolute offset, timestamp in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[RecordHeader, ...]


class SimpleRecord(NamedTuple):
    """One record to be put into a batch; `timestamp` in ms, -1: none."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[RecordHeader] = ()


class EncodedRecords(NamedTuple):
    """The bytes of a batch's records, at consecutive offsets: the same wherever the batch lies."""

    body: bytes
    record_count: int
    base_timestamp: int
    max_timestamp: int


def iterate_records(batch: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """Yield the records of one whole batch, which begins at the buffer's first byte.

    `max_bytes` bounds the records after decompression. Raises WireError for anything malformed:
    codec, lengths, a count that is not that of the records, bytes left over. The CRC is the
    caller's to check.
    """
    header = BatchHeader.parse(batch)
    body = bytes(records_of(header, batch, max_bytes))
    if header.record_count < 0:
        raise WireError(f"record count {header.record_count}")
    append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    position = 0
    for _ in range(header.record_count):
        record, position = _read_record(body, position, header.base_offset, header.base_timestamp)
        # The records keep the producer's times; under log append time the batch's one counts.
        yield record._replace(timestamp=header.max_timestamp) if append_time else record
    if position != len(body):
        raise WireError(
            f"{len(body) - position} bytes after the last of {header.record_count} records"
        )


def records_of(header: BatchHeader, batch: Buffer, max_bytes: int) -> bytes | memoryview:
    """Return the encoded records, decompressed: at most `max_bytes`, else WireError.

    Many that were compressed are a view.
    """
    if header.magic != MAGIC:
        raise WireError(f"magic {header.magic}, only {MAGIC} is read")
    if header.size_bytes > len(batch):
        raise WireError(f"a batch of {header.size_bytes} bytes, {len(batch)} are there")
    # The batch's own end, not the buffer's: other batches may follow it.
    body = memoryview(batch)[BATCH_OVERHEAD : header.size_bytes]
    if header.compression is Compression.NONE:
        return bytes(body)
    return decompress(header.compression, body, max_bytes)


def _read_record(
    body: bytes, position: int, base_offset: int, base_timestamp: int
) -> tuple[Record, int]:
    length, position = read_varint(body, position)
    end = position + length
    if length < 0 or end > len(body):
        raise WireError(f"a record of {length} bytes, {len(body) - position} remain")
    # `+ 1` passes over the attributes, which no record uses.
    timestamp_delta, position = read_varlong(body, position + 1)
    offset_delta, position = read_varint(body, position)
    key, position = _read_bytes(body, position, end)
    value, position = _read_bytes(body, position, end)
    header_count, position = read_varint(body, position)
    headers: tuple[RecordHeader, ...] = ()
    if header_count:
        headers, position = _read_headers(body, position, end, header_count)
    # Bytes that no field accounts for would be passed over by one reader and read by another.
    if position != end:
        raise WireError(f"a record that claims {length} bytes ends {end - position} before that")
    record = Record(
        base_offset + offset_delta, base_timestamp + timestamp_delta, key, value, headers
    )
    return record, end


def _read_bytes(body: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(body, position)
    if length < 0:
        if length < -1:
            raise WireError(f"length {length}")
        return None, position
    if length > end - position:
        raise WireError(f"a length of {length} bytes, {end - position} remain in the record")
    return body[position : position + length], position + length


def _read_headers(
    body: bytes, position: int, end: int, count: int
) -> tuple[tuple[RecordHeader, ...], int]:
    # A header has at least two bytes: its lengths.
    if not 0 <= count <= (end - position) // 2:
        raise WireError(f"{count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        key, position = _read_bytes(body, position, end)
        value, position = _read_bytes(body, position, end)
        if key is None:
            raise WireError("a header without a key")
        # Brokers store keys that are no UTF-8, and Java reads them in this way.
        headers.append((key.decode(errors="replace"), value))
    return tuple(headers), position


def encode_record(record: SimpleRecord, offset_delta: int, base_timestamp: int) -> bytes:
    """Return the record's bytes inside a batch, its length first."""
    key, value, timestamp, headers = record
    parts = [
        b"\0",
        VARINTS[timestamp - base_timestamp],
        VARINTS[offset_delta],
        VARINTS[-1 if key is None else len(key)],
        key or b"",
        VARINTS[-1 if value is None else len(value)],
        value or b"",
        VARINTS[len(headers)],
    ]
    for name, data in headers:
        encoded_name = name.encode()
        parts += (VARINTS[len(encoded_name)], encoded_name)
        parts += (VARINTS[-1 if data is None else len(data)], data or b"")
    encoded = b"".join(parts)
    return VARINTS[len(encoded)] + encoded


def encode_records(records: Sequence[SimpleRecord]) -> EncodedRecords:
    """Return the bytes of at least one record, as a batch has them before it is compressed."""
    base_timestamp = max_timestamp = records[0].timestamp
    encoded = []
    for delta, record in enumerate(records):
        encoded.append(encode_record(record, delta, base_timestamp))
        # The first record need not be the oldest, so deltas may be negative; the maximum is looked
        # for.
        if record.timestamp > max_timestamp:
            max_timestamp = record.timestamp
    return EncodedRecords(b"".join(encoded), len(records), base_timestamp, max_timestamp)


def build_batch(records: Sequence[SimpleRecord], **fields: Any) -> bytearray:
    """Return the batch that `packed_batch` makes, by itself."""
    return packed_batch(records, **fields)[0]


def packed_batch(
    records: Sequence[SimpleRecord] | EncodedRecords,
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> tuple[bytearray, BatchHeader]:
    """Return one batch of these records, at consecutive offsets, timestamps by creation, CRC set;
    and its header.

    At least one record: a batch that a client reads is never empty.
    """
    if not records:
        raise ValueError("a batch has at least one record")
    encoded = records if isinstance(records, EncodedRecords) else encode_records(records)
    body, count, base_timestamp, max_timestamp = encoded
    if compression:
        body = compress(compression, body)
    attributes = int(compression)
    if is_transactional:
        attributes |= ATTRIBUTE_TRANSACTIONAL
    if is_control:
        attributes |= ATTRIBUTE_CONTROL
    header = (
        base_offset,
        BATCH_LENGTH_MIN + len(body),
        leader_epoch,
        MAGIC,
        0,  # the CRC, which is set at the end
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return packed(header, body)


def recompressed(
    header: BatchHeader, records: bytes | memoryview, codec: Compression, level: int | None = None
) -> bytearray:
    """Return the batch with these records of its own, decompressed, in another codec, CRC set.

    A topic's `compression.type` asks for it. No record is decoded.
    """
    body = compress(codec, records, level)
    made = header._replace(
        batch_length=BATCH_LENGTH_MIN + len(body),
        # All else stays: transactional or not, the producer's batch is the same batch.
        attributes=header.attributes & ~ATTRIBUTE_COMPRESSION | codec,
    )
    return pack_batch(made, body)
