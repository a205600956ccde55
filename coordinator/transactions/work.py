"""What the world still owes a transaction, derived from its state and from nothing else.

So a restart is replay and then this question for every transactional id: there is no second way of
recovery. Doing it twice is harmless: what a partition has closed stays closed.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TopicPartition,
    TransactionMetadata,
)
from coordinator.transactions.states import State


@dataclass(frozen=True, slots=True)
class MarkerWork:
    """Markers of one outcome that every listed partition must hold durably before COMPLETE_*."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]
    """In order of topic and partition."""
    transaction_version: int = TRANSACTION_VERSION_1
    """From 2 on the marker's epoch is later than that of the data it ends: checked there."""


def work_due(txn: TransactionMetadata) -> MarkerWork | None:
    """Return the markers that the decision in `txn` calls for, None where nothing is owed."""
    if txn.state is State.PREPARE_COMMIT:
        commit = True
    elif txn.state is State.PREPARE_ABORT:
        commit = False
    else:
        return None
    return MarkerWork(
        transactional_id=txn.transactional_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        commit=commit,
        partitions=tuple(sorted(txn.partitions)),
        transaction_version=txn.client_transaction_version,
    )
