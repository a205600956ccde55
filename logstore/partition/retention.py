"""Which segments of a log retention deletes, and how segments below the log's start are deleted.

`due` is the rule of `retention.ms` and `retention.bytes`. Whole segments are deleted, the oldest
first, while one of these conditions holds:

- size: without the segment the log still has `retention.bytes` at least;
- time: the segment's largest timestamp lies more than `retention.ms` in the past, by the records'
  own time.

The first segment for which neither condition holds stays, and so do all later segments: a record
with a time in the future keeps them. The active segment is deleted too if it has records and all of
it is due: `PartitionLog.expire` begins a new one. Source: Kafka's UnifiedLog.deleteOldSegments.
Different here:

- Kafka deletes up to the high watermark. Here only stable records are deleted, so that no open
  transaction loses its beginning. A transaction's timeout bounds how long it may be open.
- A segment whose records have no timestamps is deleted together with a later segment that is due.
  (Kafka uses the time of the file's last write, which a copy of the file does not keep.) So is a
  segment whose file another program has deleted. A damaged one, or one that cannot be opened, keeps
  all later ones as to time: its records may be younger, and a repair brings them back.

The log's new start is durable before a segment is deleted. If a power loss brings a segment back,
recovery deletes the segment again, because it lies below the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from logstore.partition.log_config import LogConfig
from logstore.partition.snapshots import Snapshots
from logstore.partition.state import PartitionState
from logstore.segments.ledger import Ledger, SegmentFacts, Segments
from logstore.segments.names import aborted_name
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records.header import NO_TIMESTAMP

#: DeleteRecords: everything below the high watermark.
TO_HIGH_WATERMARK = -1


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


def deletable_before(offset: int, high_watermark: int) -> int:
    """Return the start that DeleteRecords before `offset` asks for. Raises OFFSET_OUT_OF_RANGE."""
    if offset == TO_HIGH_WATERMARK:
        return high_watermark
    if not 0 <= offset <= high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset}, the high watermark is {high_watermark}",
        )
    return offset


def first_base(segments: Segments, none: int) -> int:
    """Return where the oldest segment begins; `none` if there is no segment."""
    return next((one.base_offset for one in segments.facts()), none)


def delete_before(
    ledger: Ledger, state: PartitionState, snapshots: Snapshots, start_offset: int
) -> bool:
    """Delete what lies below `start_offset`; return whether leader epochs went too.

    Expects the new start to be durable. Segments go whole, with their aborted index and their
    snapshot for Kafka; a reader that has one pinned reads on. Lists no directory: a step costs what
    it deletes.
    """
    # Not all of its segments, which may be ten thousand: the oldest.
    below = takewhile(lambda one: one.end_offset <= start_offset, ledger.segments.facts())
    before = [one.base_offset for one in below]
    # The state at the end of a segment is in its snapshot alone once the segment is gone.
    snapshots.finish(ledger.durable_end_offset)
    ledger.trim(start_offset)
    first_base_offset = first_base(ledger.segments, start_offset)
    ledger.attachments.discard(aborted_name(one) for one in before if one < first_base_offset)
    snapshots.prune(first_base_offset)
    state.transactions.aborted.prune(start_offset)
    return state.leader_epochs.prune(start_offset)
