"""Aborting a transaction against its producer's will, at a bumped epoch that fences the producer.

Used where a newer incarnation takes over and where the timeout strikes. Kafka logs the fence and
the abort as one record too. Source: KIP-98, KIP-360.
"""

from __future__ import annotations

from coordinator.transactions.metadata import (
    NO_PRODUCER_EPOCH,
    PRODUCER_EPOCH_MAX,
    TransactionMetadata,
    transition,
)
from coordinator.transactions.states import State


def abort_fenced(
    txn: TransactionMetadata, now_ms: int, *, last_producer_epoch: int = NO_PRODUCER_EPOCH
) -> TransactionMetadata:
    """Return the decision to abort ONGOING `txn`; its markers will carry the bumped epoch.

    `last_producer_epoch`: the epoch whose owner itself asked for this and may go on; -1: nobody.
    """
    if txn.producer_epoch > PRODUCER_EPOCH_MAX:
        raise AssertionError(f"{txn.transactional_id}: no epoch is left to fence with")
    return transition(
        txn,
        State.PREPARE_ABORT,
        now_ms,
        producer_epoch=txn.producer_epoch + 1,
        last_producer_epoch=last_producer_epoch,
    )
