"""The table of states is Kafka's, and nothing steps outside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.transactions.metadata import PREDECESSORS, State, TransactionMetadata, transition

LEGAL = {
    (State.EMPTY, State.EMPTY),
    (State.COMPLETE_COMMIT, State.EMPTY),
    (State.COMPLETE_ABORT, State.EMPTY),
    (State.EMPTY, State.ONGOING),
    (State.ONGOING, State.ONGOING),
    (State.COMPLETE_COMMIT, State.ONGOING),
    (State.COMPLETE_ABORT, State.ONGOING),
    (State.ONGOING, State.PREPARE_COMMIT),
    (State.ONGOING, State.PREPARE_ABORT),
    (State.PREPARE_EPOCH_FENCE, State.PREPARE_ABORT),
    (State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
    (State.PREPARE_ABORT, State.COMPLETE_ABORT),
    (State.EMPTY, State.COMPLETE_ABORT),
    (State.COMPLETE_COMMIT, State.COMPLETE_ABORT),
    (State.COMPLETE_ABORT, State.COMPLETE_ABORT),
    (State.EMPTY, State.DEAD),
    (State.COMPLETE_COMMIT, State.DEAD),
    (State.COMPLETE_ABORT, State.DEAD),
    (State.ONGOING, State.PREPARE_EPOCH_FENCE),
    (State.ONGOING, State.VOTED),
    (State.VOTED, State.PREPARE_ABORT),
    (State.VOTED, State.COMPLETE_COMMIT),
}


def test_ids_and_names_are_kafkas() -> None:
    assert [(state.value, state.label) for state in State] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
        (100, "Voted"),  # ours: never written
    ]


def test_every_state_has_its_predecessors() -> None:
    assert set(PREDECESSORS) == set(State)


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_only_legal_steps_can_be_taken(
    before: State, after: State, make_txn: Callable[..., TransactionMetadata]
) -> None:
    txn = make_txn(before)
    if (before, after) in LEGAL:
        assert transition(txn, after, 20_000).state is after
    else:
        with pytest.raises(AssertionError, match=f"{before.name} -> {after.name}"):
            transition(txn, after, 20_000)
