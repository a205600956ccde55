"""Which segments of a log retention deletes.

`due` is the rule of `retention.ms` and `retention.bytes`. Whole segments are deleted, the oldest
first, while one of these conditions holds:

- size: without the segment the log still has `retention.bytes` at least;
- time: the segment's largest timestamp lies more than `retention.ms` in the past, by the records'
  own time.

The first segment for which neither condition holds stays, and so do all later segments: a record
with a time in the future keeps them. The active segment is deleted too if it has records and all of
it is due: `PartitionLog.roll_at` begins a new one. Source: Kafka's UnifiedLog.deleteOldSegments.
Different here:

- Kafka deletes up to the high watermark. Here only stable records are deleted, so that no open
  transaction loses its beginning. A transaction's timeout bounds how long it may be open.
- A segment whose records have no timestamps is deleted together with a later segment that is due.
  (Kafka uses the time of the file's last write, which a copy of the file does not keep.) So is a
  segment whose file another program has deleted. A damaged one, or one that cannot be opened, keeps
  all later ones as to time: its records may be younger, and a repair brings them back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.segments.ledger import SegmentFacts
from wire.records.header import NO_TIMESTAMP


class Due(NamedTuple):
    """Everything below `start_offset` may go.

    `unread`: the base offset of a segment whose largest timestamp must be read before more can be
    said, or None.
    """

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
    """Return where a log should start; `start_offset`, where it starts now, if nothing is due.

    `segments` are the log's oldest ones; no more are taken than needed. `size_bytes` is the size of
    all. Never above `stable_offset`. A negative limit is none. Without `delete` in the topic's
    cleanup.policy nothing is due.
    """
    if "delete" not in config.cleanup_policy:
        return Due(start_offset)
    excess_bytes = size_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
    for segment in segments:
        # An open transaction keeps its beginning, and so everything behind that.
        if segment.end_offset > stable_offset:
            break
        if excess_bytes >= segment.size_bytes:
            start_offset = max(start_offset, segment.end_offset)
        elif config.retention_ms < 0:
            break
        # Reading it waits for the disk, which the caller does before it asks again.
        elif segment.max_timestamp_ms is None:
            return Due(start_offset, segment.base_offset)
        elif segment.max_timestamp_ms != NO_TIMESTAMP:
            if now_ms - segment.max_timestamp_ms <= config.retention_ms:
                break
            start_offset = max(start_offset, segment.end_offset)
        excess_bytes -= segment.size_bytes
    return Due(start_offset)


def due_in(log: PartitionLog, segments: Iterable[SegmentFacts], now_ms: int) -> Due:
    """Return where retention wants the log to start, by its oldest `segments`: as `due`."""
    if log.is_gone:
        return Due(log.log_start_offset)
    return due(
        segments,
        log.config,
        size_bytes=log.size_bytes,
        start_offset=log.log_start_offset,
        stable_offset=log.last_stable_offset,
        now_ms=now_ms,
    )
