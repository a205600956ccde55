"""How what lies below a new start of the log is deleted, for DeleteRecords and retention.

The log's new start is durable before a segment is deleted. If a power loss brings a segment back,
recovery deletes the segment again, because it lies below the start.
"""

from __future__ import annotations

from itertools import takewhile

from logstore.partition.snapshots import Snapshots
from logstore.partition.state import PartitionState
from logstore.segments.ledger import Ledger, Segments
from logstore.segments.names import aborted_name
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: DeleteRecords: everything below the high watermark.
TO_HIGH_WATERMARK = -1


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
    snapshots.finish(start_offset)
    ledger.trim(start_offset)
    first_base_offset = first_base(ledger.segments, start_offset)
    ledger.attachments.discard(aborted_name(one) for one in before if one < first_base_offset)
    snapshots.prune(first_base_offset)
    state.transactions.aborted.prune(start_offset)
    return state.leader_epochs.prune(start_offset)
