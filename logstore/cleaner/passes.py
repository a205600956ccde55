"""The two passes over the batches of one log: the work of a run that touches nothing else.

The first pass maps the keys of the dirty part, the second one makes segments anew. `LocalPasses`
is that work. It runs in a thread of the broker, or in a process of its own, where
`logstore.cleaner.worker` calls it and `logstore.cleaner.process` stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from logstore.cleaner.batches import BatchCleaner, CleaningPlan, Pause, map_batch
from logstore.cleaner.offset_map import OffsetMap
from logstore.cleaner.transactions import CleanedTransactions
from logstore.disk.files import Buffer
from logstore.segments.aborted_index import AbortedEntry
from wire.errors import WireError
from wire.records import BatchHeader, ControlType, crc_ok, parse_marker

if TYPE_CHECKING:
    from logstore.segments.ledger import Replacement, SealedSegment

Batches: TypeAlias = Iterator[tuple[BatchHeader, memoryview]]


class MapPlan(NamedTuple):
    """What the first pass needs to know of a log."""

    slots: int
    load_factor: float
    #: The offsets that may be mapped: from the first one on, below the end.
    first_offset: int
    end_offset: int
    #: The log's aborted transactions that reach beyond `first_offset`.
    aborted: tuple[AbortedEntry, ...]


class Place(NamedTuple):
    """Where a segment lies, and its size: `SegmentFacts` without the time."""

    base_offset: int
    end_offset: int
    size_bytes: int


class Source(Protocol):
    """What the passes read of a `SealedSegment`."""

    def batches(self) -> Batches:
        """Yield its batches. Raises OSError."""


class Target(Protocol):
    """What the passes write to of a `Replacement`."""

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        """Write a whole batch behind the last one. Raises OSError."""


class Passes(Protocol):
    """The passes, wherever they run. All calls block, and call a `Pause`, which may raise.

    All raise WireError for a damaged log, and OSError.
    """

    def map_segment(self, place: Place, source: SealedSegment) -> int | None:
        """Map a segment's keys; return the first offset without room, or None. Ascending."""

    def begin_cleaning(self, plan: CleaningPlan) -> int:
        """End the first pass; return how many keys are mapped."""

    def clean_segment(
        self, place: Place, source: SealedSegment, target: Replacement, *, is_last: bool
    ) -> tuple[bool, int]:
        """Write what stays of a segment; return whether anything went, and the bytes written.

        `is_last`: it is the last segment of its group.
        """

    def end_group(self) -> list[AbortedEntry]:
        """Return the entries of the aborted index of a group's new segment."""

    def close(self) -> None:
        """Give back what the passes hold. Passes that are under way fail."""


class LocalPasses:
    """The passes, in this process."""

    def __init__(self, plan: MapPlan, pause: Pause) -> None:
        self._pause = pause
        self._first_offset = plan.first_offset
        self._offset_map = OffsetMap(
            plan.slots, plan.load_factor, plan.first_offset, plan.end_offset
        )
        self._transactions = CleanedTransactions(plan.aborted)
        self._cleaner: BatchCleaner | None = None

    def map_segment(self, place: Place, source: Source) -> int | None:
        transactions, first_offset = self._transactions, self._first_offset
        for header, batch in _whole(place, source):
            self._pause(header.size_bytes)
            if header.last_offset < first_offset or not header.record_count:
                continue
            if header.is_control:
                control_type = _control_type(batch)
                if control_type is not None:
                    transactions.on_marker(header, control_type)
            elif not transactions.on_batch(header):
                full_at = map_batch(header, batch, self._offset_map, first_offset, self._pause)
                if full_at is not None:
                    return full_at
        return None

    def begin_cleaning(self, plan: CleaningPlan) -> int:
        self._cleaner = BatchCleaner(plan, self._offset_map, self._pause)
        return len(self._offset_map)

    def clean_segment(
        self, place: Place, source: Source, target: Target, *, is_last: bool
    ) -> tuple[bool, int]:
        assert self._cleaner is not None, "the keys are mapped"
        is_changed, written_bytes = False, 0
        batches = _whole(place, source)
        following = next(batches, None)
        while following is not None:
            header, batch = following
            following = next(batches, None)
            self._pause(header.size_bytes)
            kept = self._cleaner.clean(header, batch, is_last=is_last and following is None)
            is_changed |= kept is not batch
            if kept is not None:
                if kept is not batch:
                    header = BatchHeader.parse(kept)
                target.append(kept, header)
                self._pause(header.size_bytes)
                written_bytes += header.size_bytes
        return is_changed, written_bytes

    def end_group(self) -> list[AbortedEntry]:
        assert self._cleaner is not None, "the keys are mapped"
        entries, self._cleaner.aborted = self._cleaner.aborted, []
        return entries

    def close(self) -> None:
        """There is nothing to release."""


def _whole(place: Place, source: Source) -> Batches:
    """Yield all batches of a segment. Raises WireError for a damaged one.

    Damage must delete nothing: neither by a wrong key, nor by a wrong offset or length, which no
    CRC protects.
    """
    next_offset, size_bytes = place.base_offset, 0
    for header, batch in source.batches():
        if not crc_ok(batch):
            raise WireError(f"the CRC of the batch at {header.base_offset} does not match")
        if not next_offset <= header.base_offset < header.next_offset <= place.end_offset:
            raise WireError(f"a batch at {header.base_offset} after offset {next_offset - 1}")
        next_offset = header.next_offset
        size_bytes += header.size_bytes
        yield header, batch
    if size_bytes != place.size_bytes:
        raise WireError(
            f"segment {place.base_offset}: no batch at byte {size_bytes} of {place.size_bytes}"
        )


def _control_type(batch: Buffer) -> ControlType | None:
    try:
        return parse_marker(batch).control_type
    except WireError:
        return None
