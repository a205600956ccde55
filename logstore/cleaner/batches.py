"""The rules of what cleaning leaves of a batch, as functions of bytes.

- A record stays if no later record that the offset map covers has its key. A record at or beyond
  the end of the map stays in any case.
- A tombstone stays until its batch's delete horizon. The horizon is set when the offset map covers
  the tombstone for the first time, so a reader that needs less than `delete.retention.ms` from the
  log's start to its end sees every deletion.
- Records of aborted transactions go at once. A marker stays as long as a batch of its transaction
  does, and then until a delete horizon of its own.
- Batches from which producer state is replayed stay, if only as empty ones: the batches that the
  state remembers of each active producer. The last marker of each producer stays whole.
- The last batch of every segment that is written stays too, if only as an empty one. So segments
  join without a gap, and a reader in a gap always finds a batch after the gap.

A batch that loses nothing is passed on as it is. Source: KIP-98, KIP-354, KIP-534; Kafka's Cleaner,
which keeps one batch of each producer, and of a whole run only the last batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from logstore.cleaner.offset_map import OffsetMap
from logstore.cleaner.transactions import CleanedTransactions
from logstore.disk.files import Buffer
from logstore.segments.aborted_index import AbortedEntry
from wire.errors import WireError
from wire.records import DECOMPRESSED_BYTES_MAX, BatchHeader, TimestampType, parse_marker
from wire.records.record import records_of
from wire.records.spans import (
    KeptRecords,
    RecordSpan,
    batch_of_spans,
    empty_batch,
    scan_records,
    timestamp_of,
)
from wire.types import INT64_MAX

if TYPE_CHECKING:
    from logstore.partition.producer_state import ProducerState

#: Called often while a thread works, with the bytes read or written since the last call. It may
#: sleep to let other work go on, and raise to end the run.
Pause = Callable[[int], None]

#: How many records are scanned between two pauses. Their scan takes some 50 microseconds.
_RECORDS_PER_PAUSE = 32


def offsets_of_state(producers: Sequence[ProducerState], pause: Pause) -> frozenset[int]:
    """Return the base offsets of the batches and markers from which `producers` is replayed."""
    offsets = set()
    for number, state in enumerate(producers):
        if number % _RECORDS_PER_PAUSE == 0:
            pause(0)
        offsets.add(state.last_marker_offset)
        offsets.update(batch.base_offset for batch in state.remembered())
    return frozenset(offsets)


def map_batch(
    header: BatchHeader,
    batch: Buffer,
    offset_map: OffsetMap,
    first_offset: int,
    pause: Pause,
) -> int | None:
    """Map the batch's keys from `first_offset` on; return the first offset without room, or None.

    Raises WireError for bytes that are no records, and for offsets outside of the batch. A topic
    that was not compacted took such records unchecked; a wrong offset would delete later records.
    """
    body = records_of(header, batch, DECOMPRESSED_BYTES_MAX)
    position = done = 0
    last_delta = -1
    # Read once: a look for each record would cost as much as the scan.
    base_offset, last_offset_delta, put = (
        header.base_offset,
        header.last_offset_delta,
        offset_map.put,
    )
    while done < header.record_count:
        count = min(_RECORDS_PER_PAUSE, header.record_count - done)
        spans, position = scan_records(body, position, count)
        may_fill = len(offset_map) + count > offset_map.capacity
        for _, _, delta, key, _ in spans:
            if not last_delta < delta <= last_offset_delta:
                raise WireError(f"offset delta {delta} in the batch at {base_offset}")
            last_delta = delta
            offset = base_offset + delta
            if key is None or offset < first_offset:
                continue
            if may_fill and offset_map.is_full:
                return offset
            put(key, offset)
        done += count
        pause(0)
    return None


class CleaningPlan(NamedTuple):
    """What the second pass needs to know of a log."""

    #: The end (exclusive) of the offsets that the map covers.
    mapped_end_offset: int
    #: All of the log's aborted transactions, in the order of their markers.
    aborted: tuple[AbortedEntry, ...]
    #: Base offsets, as `offsets_of_state` returns them.
    offsets_of_state: frozenset[int]
    #: The offset of the log's last abort marker. That marker stays with its entry, because
    #: snapshots name the entry to say which aborted index they belong to.
    last_aborted_offset: int
    delete_retention_ms: int
    now_ms: int


class BatchCleaner:
    """Decides what stays of each batch of a log. The batches have to come in offset order."""

    def __init__(self, plan: CleaningPlan, offset_map: OffsetMap, pause: Pause) -> None:
        self._plan = plan
        self._offset_map = offset_map
        self._pause = pause
        self._transactions = CleanedTransactions(plan.aborted)
        #: The entries of the aborted index that stay. The caller takes those of each segment.
        self.aborted: list[AbortedEntry] = []

    def clean(self, header: BatchHeader, batch: Buffer, *, is_last: bool) -> Buffer | None:
        """Return what stays of the batch: `batch` itself, a new one, or None.

        `is_last`: the batch is the last of the segment being written, so it must stay, if only as
        an empty one. Raises WireError for bytes that are no records.
        """
        is_needed = is_last or header.base_offset in self._plan.offsets_of_state
        if header.is_control:
            return self._clean_control(header, batch, is_needed=is_needed)
        if self._transactions.on_batch(header) or not header.record_count:
            return _emptied(header, batch) if is_needed else None
        return self._clean_data(header, batch, is_needed=is_needed)

    def _clean_control(
        self, header: BatchHeader, batch: Buffer, *, is_needed: bool
    ) -> Buffer | None:
        if not header.record_count:
            return batch if is_needed else None
        try:
            control_type = parse_marker(batch).control_type
        except WireError:
            return batch  # A control batch that is no transaction's marker is left alone.
        has_data, entry = self._transactions.on_marker(header, control_type)
        is_last_abort = header.base_offset == self._plan.last_aborted_offset
        is_needed |= is_last_abort
        if entry is not None and (is_last_abort or has_data):
            self.aborted.append(entry)
        if has_data:
            return batch
        if not header.has_delete_horizon:
            body = records_of(header, batch, DECOMPRESSED_BYTES_MAX)
            kept = KeptRecords()
            kept.add(scan_records(body, 0, header.record_count)[0])
            return self._with_horizon(header, body, kept, header.max_timestamp)
        return batch if is_needed or self._plan.now_ms < header.base_timestamp else None

    def _clean_data(self, header: BatchHeader, batch: Buffer, *, is_needed: bool) -> Buffer | None:
        body = records_of(header, batch, DECOMPRESSED_BYTES_MAX)
        keeps_tombstones = not (
            header.has_delete_horizon and header.base_timestamp <= self._plan.now_ms
        )
        kept = KeptRecords()
        has_tombstone = False
        position = done = 0
        while done < header.record_count:
            count = min(_RECORDS_PER_PAUSE, header.record_count - done)
            spans, position = scan_records(body, position, count)
            staying = self._staying(header, spans, keeps_tombstones)
            has_tombstone |= not all(span[4] for span in staying)
            kept.add(staying)
            done += count
            self._pause(0)
        # The horizon begins with the run that maps the tombstone: only that run removes the records
        # that the tombstone deletes, and until then readers may still get them.
        is_mapped = header.last_offset < self._plan.mapped_end_offset
        needs_horizon = has_tombstone and is_mapped and not header.has_delete_horizon
        if len(kept) == header.record_count and not needs_horizon:
            return batch
        if not kept:
            return _emptied(header, batch) if is_needed else None
        max_timestamp = header.max_timestamp
        if not is_needed and header.timestamp_type is TimestampType.CREATE_TIME:
            # A needed batch keeps its max timestamp: producer state is replayed from its header.
            max_timestamp = max(timestamp_of(header, body, start) for start in kept.starts)
        if needs_horizon:
            return self._with_horizon(header, body, kept, max_timestamp)
        return batch_of_spans(
            header, body, kept, delete_horizon_ms=None, max_timestamp=max_timestamp
        )

    def _staying(
        self, header: BatchHeader, spans: Sequence[RecordSpan], keeps_tombstones: bool
    ) -> list[RecordSpan]:
        """Return those of a batch's records that stay."""
        base_offset, offset_map = header.base_offset, self._offset_map
        if header.next_offset > self._plan.mapped_end_offset or not offset_map.tells_of(
            base_offset, header.next_offset
        ):
            return [span for span in spans if self._stays(base_offset, span, keeps_tombstones)]
        # The first pass has seen these records, and knows which of them have a later one.
        superseded, base = offset_map.superseded, base_offset - offset_map.first_offset
        return [
            span
            for span in spans
            if not superseded[base + span[2]]
            and span[3] is not None
            and (span[4] or keeps_tombstones)
        ]

    def _stays(self, base_offset: int, span: RecordSpan, keeps_tombstones: bool) -> bool:
        _, _, delta, key, has_value = span
        offset = base_offset + delta
        if offset >= self._plan.mapped_end_offset:
            return True
        if key is None or offset < self._offset_map.get(key):
            return False
        return has_value or keeps_tombstones

    def _with_horizon(
        self, header: BatchHeader, body: bytes | memoryview, kept: KeptRecords, max_timestamp: int
    ) -> bytearray:
        # A topic may keep tombstones for ever, which is more than a timestamp can say.
        horizon_ms = min(self._plan.now_ms + self._plan.delete_retention_ms, INT64_MAX)
        return batch_of_spans(
            header,
            body,
            kept,
            delete_horizon_ms=horizon_ms,
            max_timestamp=max_timestamp,
        )


def _emptied(header: BatchHeader, batch: Buffer) -> Buffer:
    return empty_batch(header) if header.record_count else batch
