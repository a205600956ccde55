"""Changes to bytes: cuts, flipped bits, lying lengths, splices."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

#: Lengths and counts that lie: as int16, int32 and int64, and as varints.
LIES = (
    b"\0",
    b"\x01",
    b"\xff\xff",
    b"\x7f\xff",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\x7f" + b"\xff" * 7,
    b"\x80" + b"\0" * 7,
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x01",
    b"\x80" * 6,
)


def mutated(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return `data` after one to four changes; a splice takes bytes of one of `others`."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        _change(random, changed, others)
    return bytes(changed)


def _change(random: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    match random.randrange(8):
        case 0 if data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        case 1 if data:
            data[at % len(data)] = random.randrange(256)
        case 2:
            lie = random.choice(LIES)
            data[at : at + len(lie)] = lie
        case 3:
            data[at:at] = random.choice(LIES)
        case 4:
            del data[at:]
        case 5:
            del data[at : at + random.randrange(1, 9)]
        case 6:
            # A part of it once more: entries that repeat, tags that do not ascend.
            data[at:at] = data[at : at + random.randrange(1, 40)]
        case _:
            other = random.choice(others) if others else bytes(data)
            begin = random.randrange(len(other) + 1)
            data[at:at] = other[begin : begin + random.randrange(1, 60)]
