"""References: chunks whose batches lie in an object.

    0xFF | version int8, 1 | position int64 | size int32 | the object's key, UTF-8

A batch begins with its base offset, which is never negative, so its first byte is below 0x80.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

#: The first byte of a reference.
REFERENCE = 0xFF
#: No reference is longer: the longest keys have some 170 bytes.
REFERENCE_BYTES_MAX = 1_024
_VERSION = 1
_HEAD = Struct(">BbqI")


class Reference(NamedTuple):
    """Where the batches of a chunk lie."""

    object_key: str
    position: int
    size_bytes: int

    def encode(self) -> bytes:
        """Return what the chunk holds in place of its batches."""
        head = _HEAD.pack(REFERENCE, _VERSION, self.position, self.size_bytes)
        data = head + self.object_key.encode()
        assert len(data) <= REFERENCE_BYTES_MAX, "a sweep would not see it, and delete the object"
        return data


def is_reference(data: bytes) -> bool:
    """Return whether a chunk's data is a reference, and not batches."""
    return data[0] == REFERENCE


def decode(data: bytes) -> Reference:
    """Return the reference that a chunk holds. Raises ValueError for a later version's."""
    _, version, position, size_bytes = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"a reference of version {version} was written by a later release")
    return Reference(data[_HEAD.size :].decode(), position, size_bytes)
