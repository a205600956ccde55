"""The value of a record of the bulk topic: whose it is, its number, and a checksum of all that."""

from __future__ import annotations

import zlib
from typing import NamedTuple

SIZE_BYTES = 16_384
_CHECKSUM_DIGITS = 8
_FILLER = bytes(range(33, 127)) * (SIZE_BYTES // 94 + 2)


class Bulk(NamedTuple):
    """Record `number` of `stream`: of one producer, from its start to its end."""

    stream: str
    number: int


def value_of(stream: str, number: int) -> bytes:
    """Return the CRC-32 in hex, and what it covers: the stream, the number, and a filler."""
    head = f":{stream}:{number}:".encode()
    start = number % 94
    covered = head + _FILLER[start : start + SIZE_BYTES - _CHECKSUM_DIGITS - len(head)]
    return b"%08x" % zlib.crc32(covered) + covered


def parse(value: bytes) -> Bulk | None:
    """Return whose record it is; None where the checksum is wrong."""
    covered = value[_CHECKSUM_DIGITS:]
    if value[:_CHECKSUM_DIGITS] != b"%08x" % zlib.crc32(covered):
        return None
    _, stream, number, _ = covered.split(b":", 3)
    return Bulk(stream.decode(), int(number))
