"""Conflict detection: no two open transactions commit the same offset of a group.

Off unless `transaction.offset.conflict.detection.enable`. Kafka lets both go on, and who commits
last wins, so the output of both counts although it was made of the same input: what fences the
slower of two consumers is its generation (KIP-447), which clients without group metadata leave out.
Pulsar refuses the second acknowledgement (TransactionConflictException); so does this.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.groups.offsets.committed import OffsetKey
from coordinator.groups.offsets.pending_acks import PendingAcks
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def check_conflicts(
    pending: PendingAcks, producer_id: int, producer_epoch: int, keys: Iterable[OffsetKey]
) -> None:
    """Refuse offsets of which another open transaction holds any: all of them, none is staged.

    TRANSACTION_ABORTABLE: whoever is refused aborts and reads again; the first goes on.
    """
    for key in keys:
        other = pending.held_by_another(key, producer_id, producer_epoch)
        if other is not None:
            raise KafkaError(
                ErrorCode.TRANSACTION_ABORTABLE,
                f"{key.topic}-{key.partition} of group {key.group_id} is pending in the"
                f" transaction of producer {other[0]} at epoch {other[1]}",
            )


def conflict_code(code: ErrorCode, *, is_abortable_known: bool) -> ErrorCode:
    """Return what a client is told that may not know TRANSACTION_ABORTABLE.

    ILLEGAL_GENERATION: to every client the transaction has to be aborted, its producer may go on.
    """
    if code is ErrorCode.TRANSACTION_ABORTABLE and not is_abortable_known:
        return ErrorCode.ILLEGAL_GENERATION
    return code
