"""One run of the cleaner over one log: map the keys of its dirty part, then write it anew.

Two passes. The first reads from the first dirty offset on and maps keys to their last offsets,
until the map is full or nothing cleanable is left. The second reads the whole log up to there, in
groups of segments. Each group becomes one segment, which takes the group's place before the next
group begins. So a run that is given up in between has cleaned less, and does no harm.

Reading and writing happen where `run` puts them. The event loop decides about the log.
Source: Kafka's Cleaner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from logstore.cleaner.batches import CleaningPlan, Pause, offsets_of_state
from logstore.cleaner.offset_map import SLOT_BYTES
from logstore.cleaner.passes import LocalPasses, MapPlan, Passes, Place
from logstore.cleaner.plan import Cleanable, Group, grouped
from logstore.partition.log import PartitionLog
from logstore.partition.producer_state import ProducerState
from logstore.segments.aborted_index import AbortedEntry, AbortedIndex
from logstore.segments.ledger import Replacement, Runner, SealedSegment, SegmentFacts
from wire.types import INT64_MAX

#: Makes passes that run in a process of their own.
Elsewhere: TypeAlias = Callable[[MapPlan, Pause], Passes]

#: With this many slots for each key, the first slot looked at is mostly the right one.
_SLOTS_PER_KEY = 2


class Overtaken(Exception):
    """The log is another one than when its cleaning began: retention has removed segments, the
    topic was deleted, or another node is to lead the partition."""


class OffsetMapLimits(NamedTuple):
    """Kafka's `log.cleaner.dedupe.buffer.size` and `log.cleaner.io.buffer.load.factor`."""

    buffer_bytes: int = 128 << 20
    load_factor: float = 0.9


@dataclass(slots=True)
class Cleaned:
    """The outcome of a run."""

    first_dirty_offset: int
    keys: int = 0
    segments_before: int = 0
    segments_after: int = 0
    mapped_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class Cleaning:
    """One run. Make it and call `perform` on the event loop."""

    def __init__(
        self,
        log: PartitionLog,
        found: Cleanable,
        now_ms: int,
        *,
        run: Runner,
        pause: Pause,
        limits: OffsetMapLimits | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`found` is what `cleanable` says of the log now. `pause` is called where `run` works.

        `elsewhere` takes the place of `LocalPasses` for a log in files.
        """
        self._log = log
        self._found = found
        self._now_ms = now_ms
        self._run = run
        self._pause = pause
        self._limits = limits or OffsetMapLimits()
        self._elsewhere = elsewhere
        self._passes: Passes | None = None

    async def perform(self) -> Cleaned:
        """Clean the log; return what was done.

        Raises Overtaken, WireError (the log is damaged), OSError (nothing is lost),
        PartitionGone, StorageFailure (stop the process), and whatever `pause` and `elsewhere`
        raise.
        """
        try:
            return await self._perform()
        finally:
            if self._passes is not None:
                self._passes.close()

    async def _perform(self) -> Cleaned:
        log, found = self._log, self._found
        done = Cleaned(found.first_dirty_offset)
        passes, end_offset = await self._map_keys(done)
        done.keys = await self._run(
            partial(
                self._begin_cleaning,
                passes,
                end_offset,
                log.transactions.aborted.copied(),
                list(log.producers.values()),
            )
        )
        # Everything is made durable first: a record must not go because of a later one that a crash
        # could take away. The snapshot is made durable too, because recovery can no longer replay
        # that state from the cleaned log.
        await log.secure_state()
        for group in grouped(found.segments, log.config, end_offset):
            await self._clean_group(group, passes, done)
        # Here, since a process may take a moment to end.
        await self._run(passes.close)
        log.first_dirty_offset = end_offset
        done.first_dirty_offset = end_offset
        return done

    async def _map_keys(self, done: Cleaned) -> tuple[Passes, int]:
        """Return the passes, and the first offset that their map does not cover."""
        found = self._found
        first_dirty = found.first_dirty_offset
        passes: Passes | None = None
        for segment in found.segments:
            if segment.end_offset <= first_dirty:
                continue
            done.mapped_bytes += segment.size_bytes
            source = await self._open(segment.base_offset)
            try:
                if passes is None:
                    passes = await self._begin(source)
                full_at = await self._run(
                    partial(passes.map_segment, _place(segment, source), source)
                )
            finally:
                source.close()
            if full_at is not None:
                return passes, full_at
        assert passes is not None, "a log that is cleaned has dirty segments"
        return passes, found.end_offset

    async def _begin(self, source: SealedSegment) -> Passes:
        first_dirty, end_offset = self._found.first_dirty_offset, self._found.end_offset
        wanted = _SLOTS_PER_KEY * (end_offset - first_dirty)
        slots = max(2, min(self._limits.buffer_bytes // SLOT_BYTES, wanted))
        aborted = self._log.transactions.aborted.copied()
        load_factor = self._limits.load_factor
        make: Elsewhere = LocalPasses
        if self._elsewhere is not None and source.descriptor >= 0:
            make = self._elsewhere

        def begin() -> Passes:
            entries = tuple(aborted.entries(first_dirty, INT64_MAX))
            # Kept at once: a cancelled run closes them too.
            self._passes = make(
                MapPlan(slots, load_factor, first_dirty, end_offset, entries), self._pause
            )
            return self._passes

        return await self._run(begin)

    def _begin_cleaning(
        self,
        passes: Passes,
        end_offset: int,
        aborted: AbortedIndex,
        producers: Sequence[ProducerState],
    ) -> int:
        return passes.begin_cleaning(
            CleaningPlan(
                end_offset,
                tuple(aborted.entries(0, INT64_MAX)),
                offsets_of_state(producers, self._pause),
                aborted.last_offset,
                self._log.config.delete_retention_ms,
                self._now_ms,
            )
        )

    async def _clean_group(self, group: Group, passes: Passes, done: Cleaned) -> None:
        log = self._log
        bases = [segment.base_offset for segment in group.segments]
        replacement = log.ledger.segments.replacement(bases)
        if replacement is None:
            raise Overtaken
        written_bytes = 0
        try:
            is_changed = len(bases) > 1
            for segment in group.segments:
                source = await self._open(segment.base_offset)
                try:
                    place = _place(segment, source)
                    work = partial(passes.clean_segment, place, source, replacement)
                    is_last = segment is group.segments[-1]
                    changed, size_bytes = await self._run(partial(work, is_last=is_last))
                    is_changed |= changed
                    written_bytes += size_bytes
                finally:
                    source.close()
            entries = await self._run(passes.end_group)
            if is_changed:
                aborted = b"".join(entry.encode() for entry in entries)
                await self._run(partial(replacement.seal, aborted))
        except BaseException:
            # After a cancellation too, the files of a half-written segment must go.
            replacement.abandon()
            raise
        done.read_bytes += sum(segment.size_bytes for segment in group.segments)
        # An unchanged segment stays as it is: a swap costs syncs.
        if is_changed:
            await self._swap(group, replacement, entries)
        else:
            replacement.abandon()
        done.segments_before += len(bases)
        done.segments_after += 1
        done.written_bytes += written_bytes

    async def _swap(
        self,
        group: Group,
        replacement: Replacement,
        entries: list[AbortedEntry],
    ) -> None:
        def on_swapped() -> None:
            self._log.on_replaced(group.base_offset, group.end_offset, entries)

        is_swapped = await replacement.swap(self._run, on_swapped)
        if not is_swapped:
            raise Overtaken

    async def _open(self, base_offset: int) -> SealedSegment:
        source = await self._log.ledger.segments.read_sealed(base_offset)
        if source is None:
            raise Overtaken
        if self._log.is_gone:
            # Another node may lead it, and have replaced what was read.
            source.close()
            raise Overtaken
        return source


def _place(segment: SegmentFacts, source: SealedSegment) -> Place:
    return Place(segment.base_offset, segment.end_offset, source.size_bytes)
