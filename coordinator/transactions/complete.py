"""Completion: every marker of a decided transaction is durable, and its outcome is remembered.

COMPLETE_* in the log means that nothing of the transaction is open anywhere: append it only then,
or so that it is there after a crash only with all markers. It may be the decision itself. Where it
is not, and is lost in a crash, replay finds PREPARE_* and drives the markers again.
"""

from __future__ import annotations

from coordinator.decision import Decision
from coordinator.transactions.metadata import NO_PRODUCER_ID, TransactionMetadata, transition
from coordinator.transactions.states import State
from coordinator.transactions.work import MarkerWork

_COMPLETED = {
    State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
    State.PREPARE_ABORT: State.COMPLETE_ABORT,
}


def complete(
    txn: TransactionMetadata | None, done: MarkerWork, now_ms: int
) -> Decision[TransactionMetadata, None]:
    """Decide that `done` was all that `txn` owed. Nothing to log for work of another
    transaction.

    Where the producer's epochs are used up it goes on with the producer id kept for it.
    """
    worked_for = (done.producer_id, done.producer_epoch)
    if txn is None or (txn.producer_id, txn.producer_epoch) != worked_for:
        return Decision(answer=None)
    completed = _COMPLETED.get(txn.state)
    if completed is None:
        return Decision(answer=None)
    return Decision(records=(ended(txn, completed, now_ms),), answer=None)


def ended(txn: TransactionMetadata, completed: State, now_ms: int) -> TransactionMetadata:
    """Return `txn` in `completed`: nothing of it is open, and its producer may go on."""
    changes: dict[str, int] = {}
    if txn.next_producer_id != NO_PRODUCER_ID:
        changes = {
            "producer_id": txn.next_producer_id,
            "producer_epoch": 0,
            "previous_producer_id": txn.producer_id,
            "next_producer_id": NO_PRODUCER_ID,
        }
    return transition(txn, completed, now_ms, partitions=frozenset(), votes=(), **changes)
