"""Where a log starts: what may become its start, and what goes with the batches below it.

The new start is durable before anything is deleted: files that a power loss brings back below it
are deleted again by recovery. Segments go whole, under no reader (who has one pinned reads on);
with them their aborted index, and their snapshot for Kafka. Nothing here lists a directory: a step
costs what it deletes.
"""

from __future__ import annotations

from logstore.partition.snapshots import Snapshots
from logstore.partition.state import PartitionState
from logstore.segments.ledger import Ledger
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


def give_up(ledger: Ledger, state: PartitionState, snapshots: Snapshots, start_offset: int) -> bool:
    """Delete what lies below `start_offset`, which is durable; whether leader epochs went too."""
    before = ledger.segments.base_offsets
    ledger.trim(start_offset)
    first_base_offset = next(iter(ledger.segments.base_offsets), start_offset)
    for base_offset in before:
        if base_offset >= first_base_offset:
            break
        ledger.attachments.delete(aborted_name(base_offset))
    snapshots.prune(first_base_offset)
    state.transactions.aborted.prune(start_offset)
    return state.leader_epochs.prune(start_offset)
