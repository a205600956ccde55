"""Which partition a key goes to: Java's clients' choice, so that all agree.

Murmur2, seed 0x9747b28c, masked positive, modulo the count. Source: Kafka's Utils.murmur2,
BuiltInPartitioner.
"""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_SHIFT = 24


def partition_for(key: bytes, partition_count: int) -> int:
    """Return the partition of a key."""
    return (murmur2(key) & _POSITIVE) % partition_count


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit hash."""
    length = len(data)
    value = (_SEED ^ length) & _WORD
    whole = length - length % 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _WORD
        value = value * _MULTIPLIER & _WORD ^ word
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _WORD
    value = (value ^ value >> 13) * _MULTIPLIER & _WORD
    return value ^ value >> 15
