"""Variable-length integers of records: zigzag, seven bits to a byte, the lowest first."""

from __future__ import annotations

from collections.abc import Mapping

from wire.errors import WireError


def encode_varint(value: int) -> bytes:
    """Return the encoding of an int32 (varint) or int64 (varlong): at most 5 and 10 bytes."""
    zigzag = (value << 1) ^ (value >> 63)
    # The deltas and lengths that are next in number to those of `VARINTS`.
    if 0x7F < zigzag < 0x4000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7))
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


class _Varints(dict[int, bytes]):
    """Encodings by value. A value that is absent is encoded, and not kept."""

    __slots__ = ()

    def __missing__(self, value: int) -> bytes:
        return encode_varint(value)


#: `encode_varint` of any value, by subscription: -1 to 1023, the lengths and deltas of nearly all
#: records, are there without a call.
VARINTS: Mapping[int, bytes] = _Varints((value, encode_varint(value)) for value in range(-1, 1024))


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the int32 at `position` and the position after it, or raise WireError."""
    try:
        byte = data[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        second = data[position + 1]
        if second < 0x80:
            zigzag = byte & 0x7F | second << 7
            return (zigzag >> 1) ^ -(zigzag & 1), position + 2
        return _read_long(data, position, 32)
    except IndexError:
        raise WireError("a varint goes beyond the records") from None


def read_varlong(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the int64 at `position` and the position after it, or raise WireError."""
    try:
        byte = data[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        return _read_long(data, position, 64)
    except IndexError:
        raise WireError("a varint goes beyond the records") from None


def _read_long(data: bytes | memoryview, position: int, bits: int) -> tuple[int, int]:
    zigzag = shift = 0
    while shift < bits:
        byte = data[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    # Unfinished after as many bytes as the type can have, or finished with bits beyond it.
    if byte >= 0x80 or zigzag >> bits:
        raise WireError(f"a varint of more than {bits} bits")
    return (zigzag >> 1) ^ -(zigzag & 1), position
