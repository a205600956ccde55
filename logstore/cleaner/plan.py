"""The rules of a cleaning: which segments may be cleaned, how dirty they are, which become one.

A log is clean up to its first dirty offset, and dirty from there to its first uncleanable offset.
Only whole segments are cleaned. These segments are not:

- the active segment;
- the segment with the log's last batch: a snapshot of the log's end holds the CRC of that batch;
- the first segment that reaches beyond the last stable offset, and all after it, because an open
  transaction may still be aborted;
- the first dirty segment with a record younger than `min.compaction.lag.ms`, and all after it.

Source: Kafka's LogCleanerManager and Cleaner, KIP-58, KIP-354.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.segments import time_index
from logstore.segments.ledger import SegmentFacts
from logstore.segments.offset_index import RELATIVE_OFFSET_MAX
from wire.types import INT64_MAX

#: The most segments in a group. All their files are renamed in one step of the event loop, so that
#: this number bounds how long the step takes.
_SEGMENTS_MAX = 64


class Cleanable(NamedTuple):
    """How dirty a log is. `segments` are all that may be cleaned, including those that are clean.

    `unread`: the base offset of a segment whose largest timestamp must be read before an answer is
    possible; then the other fields mean nothing. None where there is an answer.
    """

    segments: tuple[SegmentFacts, ...] = ()
    first_dirty_offset: int = 0
    clean_bytes: int = 0
    dirty_bytes: int = 0
    unread: int | None = None

    @property
    def end_offset(self) -> int:
        """The first uncleanable offset."""
        return self.segments[-1].end_offset if self.segments else self.first_dirty_offset

    @property
    def dirty_ratio(self) -> float:
        """Return the share of dirty bytes in the segments that may be cleaned, 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def cleanable_of(log: PartitionLog, now_ms: int) -> Cleanable:
    """Return what of `log` may be cleaned now."""
    return cleanable(
        list(log.ledger.segments.facts()),
        log.config,
        first_dirty_offset=log.first_dirty_offset,
        start_offset=log.log_start_offset,
        stable_offset=log.last_stable_offset,
        now_ms=now_ms,
    )


def cleanable(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    first_dirty_offset: int,
    start_offset: int,
    stable_offset: int,
    now_ms: int,
) -> Cleanable:
    """Return what of a log may be cleaned now. `segments` are all of the log's segments.

    A `first_dirty_offset` below the log's start, or above the base offset of its active segment,
    counts as the log's start, as in Kafka.
    """
    if not segments:
        return Cleanable(first_dirty_offset=start_offset)
    if not start_offset <= first_dirty_offset <= segments[-1].base_offset:
        first_dirty_offset = start_offset
    # Where the active segment is empty, the one before it has the log's last batch.
    sealed = segments[:-1] if segments[-1].size_bytes else segments[:-2]
    eligible: list[SegmentFacts] = []
    clean_bytes = dirty_bytes = 0
    for segment in sealed:
        if segment.end_offset > stable_offset:
            break
        is_dirty = segment.end_offset > first_dirty_offset
        if is_dirty and config.min_compaction_lag_ms > 0:
            if segment.max_timestamp_ms is None:
                return Cleanable(unread=segment.base_offset)
            if segment.max_timestamp_ms > now_ms - config.min_compaction_lag_ms:
                break
        eligible.append(segment)
        clean_bytes += 0 if is_dirty else segment.size_bytes
        dirty_bytes += segment.size_bytes if is_dirty else 0
    return Cleanable(tuple(eligible), first_dirty_offset, clean_bytes, dirty_bytes)


def is_overdue(config: LogConfig, first_timestamp_ms: int, now_ms: int) -> bool:
    """Whether a dirty record of `first_timestamp_ms` has waited `max.compaction.lag.ms` by now."""
    lag_ms = config.max_compaction_lag_ms
    return lag_ms < INT64_MAX and 0 < first_timestamp_ms < now_ms - lag_ms


def is_dirty_enough(found: Cleanable, config: LogConfig) -> bool:
    """Whether the log is dirty, by a ratio above `min.cleanable.dirty.ratio`."""
    return found.dirty_bytes > 0 and found.dirty_ratio > config.min_cleanable_dirty_ratio


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring segments that the cleaner makes into one, ascending."""

    segments: tuple[SegmentFacts, ...]

    @property
    def base_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset


def grouped(segments: Sequence[SegmentFacts], config: LogConfig, end_offset: int) -> list[Group]:
    """Return the segments that begin below `end_offset`, in groups that each fit into one segment.

    What fits is judged by the sizes before cleaning: `segment.bytes`, the size of the indexes, and
    the 32 bits of a relative offset are the bounds.
    """
    groups: list[list[SegmentFacts]] = []
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if groups and _fits(groups[-1], segment, config):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return [Group(tuple(group)) for group in groups]


def _fits(group: Sequence[SegmentFacts], segment: SegmentFacts, config: LogConfig) -> bool:
    size_bytes = sum(one.size_bytes for one in group) + segment.size_bytes
    entries = size_bytes // max(config.index_interval_bytes, 1) + 1
    return (
        len(group) < _SEGMENTS_MAX
        and size_bytes <= config.segment_bytes
        # An entry of the offset index is smaller.
        and entries * time_index.ENTRY_BYTES <= config.segment_index_bytes
        and segment.end_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
    )
