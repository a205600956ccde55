"""Deadlines: a transaction older than its timeout is aborted, an id long unused is forgotten.

Both are exact points in time, so that the runtime sleeps until the next one and never sweeps.
Sources: KIP-98 (transaction.timeout.ms, transactional.id.expiration.ms), KIP-360.
"""

from __future__ import annotations

from coordinator.decision import Decision
from coordinator.transactions.fence import prepare_bumped
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
    txn: TransactionMetadata | None,
    id_expiration_ms: int,
    now_ms: int,
    *,
    fresh_producer_id: int,
) -> Decision[TransactionMetadata]:
    """Decide what is due at `now_ms`, if anything.

    ONGOING past its timeout: aborted at a bumped epoch, so that its late producer meets
    PRODUCER_FENCED and cannot go on in a transaction that is gone. No other incarnation took over,
    so whoever names the old epoch is told the new one, by InitProducerId or, of version 2, by the
    EndTxn that aborts, as in Kafka. `fresh_producer_id`: as `fence.prepare_bumped`.
    Unused past transactional.id.expiration.ms: DEAD, a tombstone.
    """
    due_ms = None if txn is None else deadline_ms(txn, id_expiration_ms)
    if txn is None or due_ms is None or now_ms < due_ms:
        return Decision()
    if txn.state is State.ONGOING:
        aborted = prepare_bumped(
            txn,
            State.PREPARE_ABORT,
            now_ms,
            fresh_producer_id=fresh_producer_id,
            last_producer_epoch=txn.producer_epoch,
        )
        return Decision((aborted,))
    return Decision((transition(txn, State.DEAD, now_ms),))
