"""The last offset of each key, in memory of a fixed size. Source: Kafka's SkimpyOffsetMap.

A hash table with open addressing: 128-bit digests of the keys, and offsets, 24 bytes for each slot.
A key's digest chooses the slot; if another key has it, the next free slot is used. Two keys with
one digest would count as one key. With BLAKE2b that does not happen: no log holds enough keys.
docs/decisions/0009-log-cleaner.md has the figures for a table and against a dictionary.

A second table has one byte for each offset in the range of the map: 1 if a later record has the
same key. So the cleaner's second pass need not look up the keys of the dirty part again.
"""

from __future__ import annotations

from hashlib import blake2b
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

DIGEST_BYTES = 16
SLOT_BYTES = DIGEST_BYTES + 8

_ABSENT = -1


def _zeros(size_bytes: int) -> mmap:
    """Return zeros that the system provides page by page, when they are needed.

    To clear a hundred megabytes at once would hold the interpreter for 50 ms.
    """
    return mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)


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
        """Make a table of so many `slots`, each of SLOT_BYTES.

        Keys fill at most the share `load_factor` of the slots. All offsets that will be put lie in
        [first_offset, end_offset).
        """
        self.first_offset = first_offset
        count = end_offset - first_offset
        #: One byte for each offset from `first_offset` on: 1 if a later offset of the same key was
        #: put. Empty if there are more offsets than slots, to bound the memory.
        self.superseded = bytearray(count if count <= slots else 0)
        self._slots = max(slots, 2)
        self.capacity = max(1, min(int(self._slots * load_factor), self._slots - 1))
        self._digests = _zeros(DIGEST_BYTES * self._slots)
        # Each entry is the key's last offset plus one. Zero means that the slot is free.
        self._offsets_after = memoryview(_zeros(8 * self._slots)).cast("q")
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another key."""
        return self._size >= self.capacity

    def __len__(self) -> int:
        return self._size

    def put(self, key: bytes, offset: int) -> None:
        """Set a key's last offset. The map must not be full (`is_full`)."""
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
        """Return whether `superseded` covers all of [first_offset, end_offset)."""
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
