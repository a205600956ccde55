"""What the world still owes a transaction, derived from its state and from nothing else.

So a restart is replay and then this question for every transactional id: there is no second way of
recovery. Doing it twice is harmless: what a partition has closed stays closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TopicPartition,
    TransactionMetadata,
    Vote,
)
from coordinator.transactions.states import State


class MarkerWork(NamedTuple):
    """Markers of one outcome that every listed partition must hold durably before COMPLETE_*."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]
    """In order of topic and partition."""
    transaction_version: int = TRANSACTION_VERSION_1
    """From 2 on the marker's epoch is later than that of the data it ends: checked there."""
    votes: tuple[MarkerWork, ...] = ()
    """Of a parent that commits: what its decision calls for in the name of each vote."""

    @property
    def with_votes(self) -> tuple[MarkerWork, ...]:
        """All that one decision calls for: its own, and that of its votes."""
        return (self, *self.votes)

    @property
    def is_completion_awaited(self) -> bool:
        """Whether data of a next transaction has to wait until COMPLETE_* is durable: under
        version 1 the epoch does not tell it from the data of the one that ended."""
        if self.transaction_version == TRANSACTION_VERSION_1:
            return True
        if not self.votes:
            return False
        return any(vote.transaction_version == TRANSACTION_VERSION_1 for vote in self.votes)


Find = Callable[[str], TransactionMetadata | None]


def work_due(txn: TransactionMetadata, find: Find | None = None) -> MarkerWork | None:
    """Return the markers that the decision in `txn` calls for, None where nothing is owed.

    `find` looks transactional ids up, for the votes that the decision names.
    """
    if txn.state is State.PREPARE_COMMIT:
        commit = True
    elif txn.state is State.PREPARE_ABORT:
        commit = False
    else:
        return None
    votes = tuple(_of_vote(vote, find) for vote in txn.votes) if txn.votes else ()
    return _markers(txn, commit=commit, votes=votes)


def _of_vote(vote: Vote, find: Find | None) -> MarkerWork:
    """Return what a decided vote calls for. It cannot be gone: it is sealed, and stands before the
    decision in the same log."""
    child = None if find is None else find(vote.transactional_id)
    if child is None or child.state is not State.VOTED or child.identity != vote[1:]:
        raise AssertionError(f"{vote.transactional_id}: its decided vote is {child}")
    return _markers(child, commit=True)


def _markers(
    txn: TransactionMetadata, *, commit: bool, votes: tuple[MarkerWork, ...] = ()
) -> MarkerWork:
    return MarkerWork(
        transactional_id=txn.transactional_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        commit=commit,
        partitions=tuple(sorted(txn.partitions)),
        transaction_version=txn.client_transaction_version,
        votes=votes,
    )
