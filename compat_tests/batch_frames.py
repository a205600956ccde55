"""Record batches made byte by byte, for what no client library sends.

    record     length varint | attributes | timestamp delta | offset delta | key | value | headers
    key, value length varint, -1: null | bytes

A length, count or delta may be a lie; the CRC is always right.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from crc32c import crc32c

GZIP = 1
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_COVERS_FROM = 21
_LENGTH_OVERHEAD = 12


def varint(value: int) -> bytes:
    """Return the zigzag encoding of an int32 or int64."""
    zigzag = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def sized(data: bytes | None, length: int | None = None) -> bytes:
    """Return a key or a value behind its length, or behind another `length`."""
    told = (-1 if data is None else len(data)) if length is None else length
    return varint(told) + (data or b"")


def record(
    offset_delta: int,
    *,
    timestamp_delta: int = 0,
    key: bytes | None = b"k",
    key_length: int | None = None,
    value: bytes | None = b"value",
    value_length: int | None = None,
    headers: bytes = b"\0",
    length: int | None = None,
    attributes: int = 0,
) -> bytes:
    """Return one record; `headers` begins with their count."""
    fields = (
        bytes([attributes])
        + varint(timestamp_delta)
        + varint(offset_delta)
        + sized(key, key_length)
        + sized(value, value_length)
        + headers
    )
    return varint(len(fields) if length is None else length) + fields


def gzipped(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(data) + compressor.flush()


def batch_of(
    body: bytes,
    count: int,
    timestamp_ms: int,
    *,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    max_timestamp_ms: int | None = None,
) -> bytes:
    """Return a batch with this body, as its header tells it; `body` is compressed already."""
    header = [
        0,
        _HEADER.size - _LENGTH_OVERHEAD + len(body),
        0,
        2,
        0,
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        timestamp_ms,
        timestamp_ms if max_timestamp_ms is None else max_timestamp_ms,
        -1,
        -1,
        -1,
        count,
    ]
    crc = crc32c((_HEADER.pack(*header) + body)[_CRC_COVERS_FROM:])
    header[4] = crc
    return _HEADER.pack(*header) + body


def three(changed: int = -1, **lies: object) -> bytes:
    """Return three records, of which one (by its place) is `record(place, **lies)`."""
    return b"".join(
        record(place, **(lies if place == changed else {}))  # type: ignore[arg-type]  # as told
        for place in range(3)
    )


def deltas(offset_deltas: Sequence[int]) -> bytes:
    return b"".join(map(record, offset_deltas))
