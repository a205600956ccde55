"""What the varints of records look like as bytes: tables by which a walk need not decode them.

How far a field reaches by the bytes of its length, and which bytes the offset deltas have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import TypeAlias

#: Where a length leads that is none, or that takes more bytes than its table is for.
NOWHERE = 2**62

_Head: TypeAlias = tuple[int, int, int, int | bytes, int]
_LargeHead: TypeAlias = tuple[int, int, int, int, int | bytes, int]

#: By the one byte of a field's length: the bytes up to the field's end.
STEPS = tuple(
    1 if byte == 1 else 1 + (byte >> 1) if not byte & 0x81 else NOWHERE for byte in range(256)
)
#: The same where null is not allowed.
STEPS_NOT_NULL = (*STEPS[:1], NOWHERE, *STEPS[2:])


@cache
def steps_of_two_bytes() -> list[int]:
    """Return, by both bytes of a field's length, the bytes up to the field's end.

    A length of one byte has its own value as its place.
    """
    steps = [*STEPS[:128], *[NOWHERE] * (2**16 - 128)]
    for first in range(0x80, 0x100, 2):
        for second in range(0x80):
            steps[first << 8 | second] = 2 + ((first & 0x7F | second << 7) >> 1)
    return steps


def step_of_three_bytes(low: int, high: int) -> int:
    """Return the bytes up to a field's end by the first two bytes of its length and the third."""
    if low & 0x8180 != 0x8080 or high > 0x7F:
        return NOWHERE
    return 3 + (low >> 9 & 0x3F | (low & 0x7F) << 6 | high << 13)


def _fields(timestamp_bytes: int, offset_bytes: int) -> str:
    """Return the format of timestamp, offset (as `heads` gives it) and a key's length."""
    return "BH"[timestamp_bytes - 1] + ("B0s", "H0s", "HB")[offset_bytes - 1] + "B"


@cache
def heads(
    timestamp_bytes: int, offset_bytes: int
) -> tuple[Callable[[bytes | memoryview, int], _Head], Callable[[bytes | memoryview, int], _Head]]:
    """Return what reads a record up to the key's length: behind a length of two bytes, and of one.

    Length, timestamp, the first two bytes of the offset, the last one or b"", the key's length.
    """
    fields = _fields(timestamp_bytes, offset_bytes)
    return Struct(f">Hx{fields}").unpack_from, Struct(f">Bx{fields}").unpack_from


@cache
def large_head(
    timestamp_bytes: int, offset_bytes: int
) -> Callable[[bytes | memoryview, int], _LargeHead]:
    """Return what reads a record up to the key's length behind a length of three bytes.

    The first two bytes of the length, the third, then as `heads`.
    """
    return Struct(f">HBx{_fields(timestamp_bytes, offset_bytes)}").unpack_from


@cache
def first_bytes(width: int) -> list[int]:
    """Return the first two bytes of the varints of `width` bytes as numbers, by value & 8191."""
    if width == 1:
        return [2 * number for number in range(64)]
    more = 0x80 if width == 3 else 0
    return [(number << 1 & 0x7F | 0x80) << 8 | number >> 6 | more for number in range(8192)]


# Offset deltas count up. As varints they have one byte below 64, two below 8192, then three.

_LOW_BYTES = bytes(2 * number & 0x7F | 0x80 for number in range(64))
_HIGH_BYTES = b"".join(bytes((number,)) * 64 for number in range(128))
_MIDDLE_BYTES = b"".join(bytes((number | 0x80,)) * 64 for number in range(128))


def width_of_offset(number: int) -> int:
    return 1 if number < 64 else 2 if number < 8192 else 3 if number < 2**20 else 0


def same_width_end(number: int) -> int:
    """Return up to where `offset_columns` may go from `number` on, exclusive."""
    return 64 if number < 64 else (number | 8191) + 1


def offset_columns(first: int, number: int) -> list[bytes]:
    """Return the varints of [first, first + number) by column: all first bytes, all second ones."""
    end = first + number
    if end <= 64:
        return [bytes(range(2 * first, 2 * end, 2))]
    in_block = first & 8191
    low = (_LOW_BYTES * (number // 64 + 2))[first & 63 :][:number]
    if first < 8192:
        return [low, _HIGH_BYTES[first:end]]
    middle = _MIDDLE_BYTES[in_block : in_block + number]
    return [low, middle, bytes((first >> 13,)) * number]
