"""Work is what a state owes; completion is that it was done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.transactions.commit_plan import MarkerWork, complete, work_due
from coordinator.transactions.metadata import State, TopicPartition, TransactionMetadata

MakeTxn = Callable[..., TransactionMetadata]

A0, A10, B3 = TopicPartition("a", 0), TopicPartition("a", 10), TopicPartition("b", 3)


@pytest.mark.parametrize(
    ("state", "commit"), [(State.PREPARE_COMMIT, True), (State.PREPARE_ABORT, False)]
)
def test_a_decision_owes_its_marker_to_every_partition(
    state: State, commit: bool, make_txn: MakeTxn
) -> None:
    work = work_due(make_txn(state, partitions=frozenset({B3, A10, A0})))
    assert work == MarkerWork("tx-1", 1000, 5, commit=commit, partitions=frozenset({A0, A10, B3}))


@pytest.mark.parametrize("state", sorted(set(State) - {State.PREPARE_COMMIT, State.PREPARE_ABORT}))
def test_no_other_state_owes_anything(state: State, make_txn: MakeTxn) -> None:
    assert work_due(make_txn(state)) is None


@pytest.mark.parametrize(
    ("prepared", "completed"),
    [
        (State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
        (State.PREPARE_ABORT, State.COMPLETE_ABORT),
    ],
)
def test_done_work_completes_and_the_outcome_is_remembered(
    prepared: State, completed: State, make_txn: MakeTxn
) -> None:
    before = make_txn(prepared)
    work = work_due(before)
    assert work is not None
    (txn,) = complete(before, work, 50_000).records
    assert (txn.state, txn.partitions, txn.updated_at_ms) == (completed, frozenset(), 50_000)
    assert (txn.identity, txn.txn_id) == (before.identity, before.txn_id)
    assert work_due(txn) is None


@pytest.mark.parametrize("state", sorted(set(State) - {State.PREPARE_ABORT}))
def test_work_of_an_earlier_transaction_completes_nothing_later(
    state: State, make_txn: MakeTxn
) -> None:
    work = work_due(make_txn(State.PREPARE_ABORT))
    assert work is not None
    assert complete(make_txn(state, producer_epoch=6), work, 50_000).records == ()
    assert complete(None, work, 50_000).records == ()
