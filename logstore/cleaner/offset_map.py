"""The last offset of each key, in memory that does not grow: Kafka's SkimpyOffsetMap.

A table of 128-bit digests and one of offsets, 24 bytes for each slot. A key's digest names its
slot; where that is taken, the next free slot serves. Two keys with one digest would count as one
key: with BLAKE2b no log will ever hold enough keys for that. The figures that speak for a table,
and against a dictionary, are in docs/decisions/0009-log-cleaner.md.

Beside the table stands a byte for each offset that is mapped: whether a later record has its key.
So the second pass need not look up the keys of the dirty part again.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

DIGEST_BYTES = 16
SLOT_BYTES = DIGEST_BYTES + 8

_ABSENT = -1


class OffsetMap:
    """The last offset of each of up to `capacity` keys. Callers put offsets in ascending order."""

    __slots__ = (
        "_digests",
        "_offsets_after",
        "_size",
        "_slots",
        "capacity",
        "first_offset",
        "superseded",
    )

    def __init__(
        self, slots: int, load_factor: float = 0.9, first_offset: int = 0, end_offset: int = 0
    ) -> None:
        """A slot takes SLOT_BYTES. At most the share `load_factor` of all slots is used.

        All offsets will lie in [first_offset, end_offset).
        """
        self.first_offset = first_offset
        count = end_offset - first_offset
        #: A byte for each offset from `first_offset` on: 1 where a later one of its key was put.
        #: Empty where that would take more than a byte for each slot.
        self.superseded = bytearray(count if count <= slots else 0)
        self._slots = max(slots, 2)
        self.capacity = max(1, min(int(self._slots * load_factor), self._slots - 1))
        self._digests = bytearray(DIGEST_BYTES * self._slots)
        # A slot holds its key's last offset plus one, so that zero means a free slot.
        self._offsets_after = array("q", bytes(8 * self._slots))
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another key."""
        return self._size >= self.capacity

    def __len__(self) -> int:
        return self._size

    def put(self, key: bytes, offset: int) -> None:
        """Remember a key's offset, in place of an earlier one. Expects room: not `is_full`."""
        digest = blake2b(key, digest_size=DIGEST_BYTES).digest()
        slot = int.from_bytes(digest[:8], "little") % self._slots
        digests, offsets_after = self._digests, self._offsets_after
        while offset_after := offsets_after[slot]:
            at = slot * DIGEST_BYTES
            if digests[at : at + DIGEST_BYTES] == digest:
                offsets_after[slot] = offset + 1
                if self.superseded:
                    self.superseded[offset_after - 1 - self.first_offset] = 1
                return
            slot = slot + 1 if slot + 1 < self._slots else 0
        at = slot * DIGEST_BYTES
        digests[at : at + DIGEST_BYTES] = digest
        offsets_after[slot] = offset + 1
        self._size += 1

    def tells_of(self, first_offset: int, end_offset: int) -> bool:
        """Whether `superseded` knows of every record in [first_offset, end_offset)."""
        end = self.first_offset + len(self.superseded)
        return self.first_offset <= first_offset and end_offset <= end

    def get(self, key: bytes) -> int:
        """Return the last offset of the key, -1 if the key was not put."""
        digest = blake2b(key, digest_size=DIGEST_BYTES).digest()
        slot = int.from_bytes(digest[:8], "little") % self._slots
        digests, offsets_after = self._digests, self._offsets_after
        while offset_after := offsets_after[slot]:
            at = slot * DIGEST_BYTES
            if digests[at : at + DIGEST_BYTES] == digest:
                return offset_after - 1
            slot = slot + 1 if slot + 1 < self._slots else 0
        return _ABSENT
