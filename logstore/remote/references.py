"""References: chunks whose batches lie in an object.

    0xFF | version int8, 1 | position int64 | size int32 | the object's key, UTF-8

A batch begins with its base offset, which is never negative, so its first byte is below 0x80.

Once an object is gone for good, batches without records take the place of each reference to it, as
of what compaction has removed. They have the same offsets: none is given out twice, and consumers
go on behind them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from wire.records import BatchHeader
from wire.records.spans import batch_without_records

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


def without_object(base_offset: int, end_offset: int, cuts: Iterable[int] = ()) -> bytes:
    """Return what a chunk of these offsets holds once its object is gone for good.

    A batch ends at each of `cuts` between them: where a snapshot tells of a state, a batch ends.
    None has a producer or a leader epoch, as it is not known any more which ones had written there.
    """
    within = {cut for cut in cuts if base_offset < cut < end_offset}
    bounds = sorted({base_offset, end_offset} | within)
    return b"".join(batch_without_records(*each) for each in pairwise(bounds))


def stands_for_lost(header: BatchHeader) -> bool:
    """Return whether a batch is one of `without_object`. What compaction leaves has an epoch."""
    return header.record_count == 0 and header.partition_leader_epoch == -1
