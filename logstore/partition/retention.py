"""How much of a log its retention still keeps: the rule of `retention.ms` and `retention.bytes`.

Segments go whole, the oldest first, while one of these holds:

- size: without it, the log has still `retention.bytes` at least;
- time: its largest timestamp lies more than `retention.ms` in the past, by the records' own time.

The first that neither holds for ends it, so a record ahead of the clock keeps what follows it. The
active segment goes too once all of it is due, if it has records: a new one begins (`expire`).
Source: Kafka's UnifiedLog.deleteOldSegments. Different here:

- Kafka deletes up to the high watermark. Here nothing goes that is not stable, so that no open
  transaction loses its beginning; how long one may be open is bounded by its timeout.
- A segment whose records have no timestamps goes with a later one that is due (Kafka asks when its
  file was last written, which a copy of the file forgets).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.segments.ledger import SegmentFacts
from logstore.segments.time_index import NO_TIMESTAMP


class Due(NamedTuple):
    """Everything below `start_offset` may go; `unread` is the base offset of the segment whose
    largest timestamp has to be read before more can be said, or None."""

    start_offset: int
    unread: int | None = None


def due(
    segments: Iterable[SegmentFacts],
    config: LogConfig,
    *,
    size_bytes: int,
    start_offset: int,
    stable_offset: int,
    now_ms: int,
) -> Due:
    """Return where a log should start; `start_offset`, where it does, if nothing is due.

    `segments` are its oldest ones, of which no more are taken than needed; `size_bytes` is the size
    of all. Never above `stable_offset`. A negative limit is none.
    """
    excess_bytes = size_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
    for segment in segments:
        if segment.end_offset > stable_offset:
            break
        if excess_bytes >= segment.size_bytes:
            start_offset = max(start_offset, segment.end_offset)
        elif config.retention_ms < 0:
            break
        elif segment.max_timestamp_ms is None:
            return Due(start_offset, segment.base_offset)
        elif segment.max_timestamp_ms != NO_TIMESTAMP:
            if now_ms - segment.max_timestamp_ms <= config.retention_ms:
                break
            start_offset = max(start_offset, segment.end_offset)
        excess_bytes -= segment.size_bytes
    return Due(start_offset)


def due_of(log: PartitionLog, segments: Iterable[SegmentFacts], now_ms: int) -> Due:
    """Return where `log` should start, by its oldest `segments`; not moved without `delete`."""
    if log.is_deleted or "delete" not in log.config.cleanup_policy:
        return Due(log.log_start_offset)
    return due(
        segments,
        log.config,
        size_bytes=log.size_bytes,
        start_offset=log.log_start_offset,
        stable_offset=log.last_stable_offset,
        now_ms=now_ms,
    )


def expire(log: PartitionLog, start_offset: int) -> None:
    """Have the log start at `start_offset`, durable as such; a whole log leaves one empty segment.

    Blocks for a few syncs where that has to be made.
    """
    if start_offset == log.log_end_offset:
        log.ledger.roll()
    log.advance_start(start_offset)
