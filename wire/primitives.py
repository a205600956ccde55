"""The functions that compiled encoders and decoders call: varints, UUIDs, tagged fields.

Reading functions take the first byte of a varint and the position behind it, since compiled code
reads that byte together with the fields before it and needs help only where it is above 127.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from uuid import UUID

from wire.errors import WireError
from wire.types import STRING_BYTES_MAX, Buffer

#: The varints of 0 to 127.
ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def read_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Return the value of an unsigned 32-bit varint and the position behind it."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                # Five bytes carry 35 bits; Kafka's lengths have 32.
                break
            return value, position
    raise WireError(f"varint of more than 32 bits before byte {position}")


def read_string_length(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Return the length + 1 of a compact string and the position behind it."""
    value, position = read_uvarint(buffer, position, first)
    if value > STRING_BYTES_MAX + 1:
        raise WireError(f"string of {value - 1} bytes before byte {position}")
    return value, position


def uvarint(value: int) -> bytes:
    """Encode an unsigned 32-bit varint."""
    if 0 <= value < 0x80:
        return ONE_BYTE[value]
    if 0x80 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError(f"{value} does not fit an unsigned varint")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


#: Tags above 127 are our own few, which every record of a transaction carries.
_encode_tag = lru_cache(maxsize=256)(uvarint)


def string_length(value: int) -> bytes:
    """Encode the length + 1 of a compact string."""
    if value > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {value - 1} bytes is too long for the protocol")
    return uvarint(value)


def read_tag(buffer: Buffer, position: int, limit: int) -> tuple[int, int, int]:
    """Return the tag of a tagged field, and the positions where its bytes begin and end."""
    tag, position = buffer[position], position + 1
    if tag > 127:
        tag, position = read_uvarint(buffer, position, tag)
    size, position = buffer[position], position + 1
    if size > 127:
        size, position = read_uvarint(buffer, position, size)
    if size > limit - position:
        raise WireError(f"tag {tag} at byte {position}: more is announced than remains")
    return tag, position, position + size


def read_tags(
    buffer: Buffer, position: int, limit: int, count: int
) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """Return `count` tagged fields that no schema knows, by tag, and the position behind them."""
    # Each takes two bytes at least: a larger count is refused before the loop.
    if count * 2 > limit - position:
        raise WireError(f"{count} tags at byte {position}: more is announced than remains")
    tags: dict[int, bytes] = {}
    for _ in range(count):
        tag, position, end = read_tag(buffer, position, limit)
        tags[tag] = bytes(buffer[position:end])
        position = end
    return tuple(sorted(tags.items())), position


@lru_cache(maxsize=1024)
def uuid_of(raw: bytes) -> UUID:
    """Return the UUID of 16 bytes. Cached: topic ids come again and again, and UUID() is slow."""
    return UUID(bytes=raw)


@lru_cache(maxsize=256)
def scalars(code: str, count: int) -> Struct:
    """Return the format of `count` big-endian numbers."""
    return Struct(f">{count}{code}")


def tag_section(known: list[tuple[int, bytes]], unknown: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode the tagged fields of a struct: count, then tag, size and bytes by ascending tag.

    `known` is in that order already.
    """
    fields = sorted([*known, *unknown]) if unknown else known
    count = len(fields)
    section = [ONE_BYTE[count] if count < 128 else uvarint(count)]
    previous = -1
    for tag, content in fields:
        # Readers take the tags in ascending order; one of ours may be among the unknown ones.
        if tag <= previous:
            raise ValueError(f"tag {tag} is given twice")
        previous = tag
        size = len(content)
        section += (
            ONE_BYTE[tag] if tag < 128 else _encode_tag(tag),
            ONE_BYTE[size] if size < 128 else uvarint(size),
            content,
        )
    return b"".join(section)
