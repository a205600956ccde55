"""Ending a transaction at a bumped epoch, which nobody but its owner, once told, can use.

That is how version 2 ends every transaction (KIP-890), and how any is aborted where a newer
incarnation takes over or the timeout strikes (KIP-98, KIP-360). Data keeps the old epoch, markers
carry the new one. Kafka logs bump and decision as one record too.
"""

from __future__ import annotations

from typing import Any

from coordinator.transactions.metadata import (
    NO_PRODUCER_EPOCH,
    PRODUCER_EPOCH_MAX,
    TransactionMetadata,
    transition,
)
from coordinator.transactions.states import State


def prepare_bumped(
    txn: TransactionMetadata,
    state: State,
    now_ms: int,
    *,
    fresh_producer_id: int,
    last_producer_epoch: int,
    **changes: Any,
) -> TransactionMetadata:
    """Return the decision over ONGOING or VOTED `txn` at the next epoch; its `successor` may go on.

    `last_producer_epoch`: the epoch whose owner may learn the successor by asking again; -1:
    nobody. `fresh_producer_id` is used up only where the epochs are: then it is the
    `next_producer_id`, and the markers carry 32767, which no client is given. A vote of version 2
    that used them up keeps 32767, and rotates to another producer id than its client was told.
    """
    if txn.state is State.VOTED and txn.producer_epoch > PRODUCER_EPOCH_MAX:
        changes |= {"next_producer_id": fresh_producer_id, "last_producer_epoch": NO_PRODUCER_EPOCH}
        return transition(txn, state, now_ms, **changes)
    if txn.producer_epoch > PRODUCER_EPOCH_MAX:
        raise AssertionError(f"{txn.transactional_id}: no epoch is left to fence with")
    if txn.is_epoch_exhausted:
        changes["next_producer_id"] = fresh_producer_id
    return transition(
        txn,
        state,
        now_ms,
        producer_epoch=txn.producer_epoch + 1,
        last_producer_epoch=last_producer_epoch,
        **changes,
    )


def takes_producer_id(txn: TransactionMetadata | None) -> bool:
    """Whether a decision over `txn` may need a producer id that nobody has: the first one of a
    transactional id, or what it rotates to."""
    return txn is None or txn.producer_epoch >= PRODUCER_EPOCH_MAX


def next_identity(txn: TransactionMetadata, fresh_producer_id: int) -> dict[str, int]:
    """Return the changes that give `txn`, with nothing open, the next epoch at once; where the
    epochs are used up, the fresh producer id."""
    if txn.is_epoch_exhausted:
        return {
            "producer_id": fresh_producer_id,
            "producer_epoch": 0,
            "previous_producer_id": txn.producer_id,
        }
    return {"producer_epoch": txn.producer_epoch + 1}
