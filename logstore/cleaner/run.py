"""One run of the cleaner over one log: map the keys of its dirty part, then write it anew.

Two passes. The first reads from the first dirty offset on and maps keys to their last offsets,
until the map is full or nothing cleanable is left. The second reads the whole log up to there, in
groups of segments. Each group becomes one segment, which takes the group's place before the next
group begins. So a run that is given up in between has cleaned less, and does no harm.

Reading and writing happen where `run` puts them. The event loop decides about the log.
Source: Kafka's Cleaner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from logstore.cleaner.batches import BatchCleaner, Pause, map_batch, offsets_of_state
from logstore.cleaner.offset_map import SLOT_BYTES, OffsetMap
from logstore.cleaner.plan import Cleanable, Group, grouped
from logstore.cleaner.transactions import CleanedTransactions
from logstore.disk.files import Buffer
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import INT64_MAX
from logstore.partition.producer_state import ProducerState
from logstore.segments.aborted_index import AbortedEntry, AbortedIndex
from logstore.segments.ledger import Replacement, Runner, SealedSegment, SegmentFacts
from wire.errors import WireError
from wire.records import BatchHeader, ControlType, crc_ok, parse_marker

Batches: TypeAlias = Iterator[tuple[BatchHeader, memoryview]]

#: With this many slots for each key, the first slot looked at is mostly the right one.
_SLOTS_PER_KEY = 2


class Overtaken(Exception):
    """Retention, or the deletion of the topic, removed segments while they were being cleaned."""


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
    ) -> None:
        """`found` is what `cleanable` says of the log now. `pause` is called where `run` works."""
        self._log = log
        self._found = found
        self._now_ms = now_ms
        self._run = run
        self._pause = pause
        self._limits = limits or OffsetMapLimits()

    async def perform(self) -> Cleaned:
        """Clean the log; return what was done.

        Raises Overtaken, WireError (the log is damaged), OSError (nothing is lost),
        PartitionGone, StorageFailure (stop the process), and whatever `pause` raises.
        """
        log, found = self._log, self._found
        done = Cleaned(found.first_dirty_offset)
        offset_map, end_offset = await self._map_keys(done)
        cleaner = await self._run(
            partial(
                self._cleaner,
                offset_map,
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
            await self._clean_group(group, cleaner, done)
        log.first_dirty_offset = end_offset
        done.first_dirty_offset = end_offset
        done.keys = len(offset_map)
        return done

    async def _map_keys(self, done: Cleaned) -> tuple[OffsetMap, int]:
        """Return the map, and the first offset that the map does not cover."""
        found = self._found
        first_dirty = found.first_dirty_offset
        dirty = [segment for segment in found.segments if segment.end_offset > first_dirty]
        wanted = _SLOTS_PER_KEY * (found.end_offset - first_dirty)
        slots = max(2, min(self._limits.buffer_bytes // SLOT_BYTES, wanted))
        covered = first_dirty, found.end_offset
        offset_map = await self._run(partial(OffsetMap, slots, self._limits.load_factor, *covered))
        aborted = self._log.transactions.aborted.copied()
        transactions = await self._run(partial(_transactions, aborted, first_dirty))
        for segment in dirty:
            done.mapped_bytes += segment.size_bytes
            source = await self._open(segment.base_offset)
            try:
                batches = _whole(segment, source)
                full_at = await self._run(
                    partial(self._map_segment, batches, offset_map, transactions, first_dirty)
                )
            finally:
                source.close()
            if full_at is not None:
                return offset_map, full_at
        return offset_map, found.end_offset

    def _map_segment(
        self,
        batches: Batches,
        offset_map: OffsetMap,
        transactions: CleanedTransactions,
        first_offset: int,
    ) -> int | None:
        for header, batch in batches:
            self._pause(header.size_bytes)
            if header.last_offset < first_offset or not header.record_count:
                continue
            if header.is_control:
                control_type = _control_type(batch)
                if control_type is not None:
                    transactions.on_marker(header, control_type)
            elif not transactions.on_batch(header):
                full_at = map_batch(header, batch, offset_map, first_offset, self._pause)
                if full_at is not None:
                    return full_at
        return None

    def _cleaner(
        self,
        offset_map: OffsetMap,
        end_offset: int,
        aborted: AbortedIndex,
        producers: Sequence[ProducerState],
    ) -> BatchCleaner:
        return BatchCleaner(
            _transactions(aborted, 0),
            offset_map,
            end_offset,
            offsets_of_state(producers, self._pause),
            aborted.last_offset,
            self._log.config.delete_retention_ms,
            self._now_ms,
            self._pause,
        )

    async def _clean_group(self, group: Group, cleaner: BatchCleaner, done: Cleaned) -> None:
        log = self._log
        bases = [segment.base_offset for segment in group.segments]
        replacement = log.ledger.segments.replacement(bases)
        if replacement is None:
            raise Overtaken
        cleaner.aborted = []
        written_bytes = 0
        try:
            is_changed = len(bases) > 1
            for segment in group.segments:
                source = await self._open(segment.base_offset)
                try:
                    batches = _whole(segment, source)
                    work = partial(self._clean_segment, batches, replacement, cleaner)
                    is_last = segment is group.segments[-1]
                    changed, size_bytes = await self._run(partial(work, is_last_segment=is_last))
                    is_changed |= changed
                    written_bytes += size_bytes
                finally:
                    source.close()
            entries = list(cleaner.aborted)
            if is_changed:
                aborted = b"".join(entry.encode() for entry in entries)
                await self._run(partial(replacement.seal, aborted))
        except BaseException:
            # Also a cancellation: the files of a half-written segment must go.
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

    def _clean_segment(
        self,
        batches: Batches,
        replacement: Replacement,
        cleaner: BatchCleaner,
        *,
        is_last_segment: bool,
    ) -> tuple[bool, int]:
        """Write what stays of a segment; return whether anything went, and the bytes written."""
        is_changed, written_bytes = False, 0
        following = next(batches, None)
        while following is not None:
            header, batch = following
            following = next(batches, None)
            self._pause(header.size_bytes)
            is_last = is_last_segment and following is None
            kept = cleaner.clean(header, batch, is_last=is_last)
            is_changed |= kept is not batch
            if kept is not None:
                if kept is not batch:
                    header = BatchHeader.parse(kept)
                replacement.append(kept, header)
                self._pause(header.size_bytes)
                written_bytes += header.size_bytes
        return is_changed, written_bytes

    async def _open(self, base_offset: int) -> SealedSegment:
        source = await self._log.ledger.segments.read_sealed(base_offset)
        if source is None:
            raise Overtaken
        return source


def _whole(segment: SegmentFacts, source: SealedSegment) -> Batches:
    """Yield all batches of a segment. Raises WireError for a damaged one.

    Damage must delete nothing: neither by a wrong key, nor by a wrong offset or length, which no
    CRC protects.
    """
    next_offset, size_bytes = segment.base_offset, 0
    for header, batch in source.batches():
        if not crc_ok(batch):
            raise WireError(f"the CRC of the batch at {header.base_offset} does not match")
        if not next_offset <= header.base_offset < header.next_offset <= segment.end_offset:
            raise WireError(f"a batch at {header.base_offset} after offset {next_offset - 1}")
        next_offset = header.next_offset
        size_bytes += header.size_bytes
        yield header, batch
    if size_bytes != segment.size_bytes:
        raise WireError(
            f"segment {segment.base_offset}: no batch at byte {size_bytes} of {segment.size_bytes}"
        )


def _transactions(aborted: AbortedIndex, first_offset: int) -> CleanedTransactions:
    return CleanedTransactions(aborted.entries(first_offset, INT64_MAX))


def _control_type(batch: Buffer) -> ControlType | None:
    try:
        return parse_marker(batch).control_type
    except WireError:
        return None
