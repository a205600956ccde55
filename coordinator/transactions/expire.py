"""Deadlines: a transaction older than its timeout is aborted, an id long unused is forgotten.

Both are exact points in time, so that the runtime sleeps until the next one and never sweeps.
Sources: KIP-98 (transaction.timeout.ms, transactional.id.expiration.ms), KIP-360.
"""

from __future__ import annotations

from coordinator.decision import Decision
from coordinator.transactions.fence import abort_fenced
from coordinator.transactions.metadata import TransactionMetadata, transition
from coordinator.transactions.states import PREPARED, State


def deadline_ms(txn: TransactionMetadata, id_expiration_ms: int) -> int | None:
    """Return when `expire` next has something to decide; None while markers are due."""
    if txn.state is State.ONGOING:
        return txn.started_at_ms + txn.timeout_ms
    if txn.state in PREPARED:
        return None
    return txn.updated_at_ms + id_expiration_ms


def expire(
    txn: TransactionMetadata | None, id_expiration_ms: int, now_ms: int
) -> Decision[TransactionMetadata]:
    """Decide what is due at `now_ms`, if anything.

    ONGOING past its timeout: aborted at a bumped epoch, so that its late producer meets
    PRODUCER_FENCED and cannot go on in a transaction that is gone. Unused past
    transactional.id.expiration.ms: DEAD, a tombstone.
    """
    due_ms = None if txn is None else deadline_ms(txn, id_expiration_ms)
    if txn is None or due_ms is None or now_ms < due_ms:
        return Decision()
    if txn.state is State.ONGOING:
        return Decision((abort_fenced(txn, now_ms),))
    return Decision((transition(txn, State.DEAD, now_ms),))
