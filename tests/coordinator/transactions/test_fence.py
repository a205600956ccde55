"""When a decision may need a fresh producer id."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.transactions.epochs import next_identity, prepare_bumped, takes_producer_id
from coordinator.transactions.metadata import State, TransactionMetadata
from wire.records.header import NO_PRODUCER_EPOCH

MakeTxn = Callable[..., TransactionMetadata]

FRESH = 4711


def test_an_id_that_is_seen_for_the_first_time_takes_one() -> None:
    assert takes_producer_id(None)


@pytest.mark.parametrize("epoch", [0, 5, 32765, 32766])
def test_a_producer_id_is_carried_where_one_is_taken_and_nowhere_else(
    make_txn: MakeTxn, epoch: int
) -> None:
    idle = make_txn(State.COMPLETE_COMMIT, producer_epoch=epoch)
    bumped = prepare_bumped(
        make_txn(State.ONGOING, producer_epoch=epoch),
        State.PREPARE_ABORT,
        20_000,
        fresh_producer_id=FRESH,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )
    is_taken = takes_producer_id(idle)
    assert is_taken == (epoch == 32766)
    assert (FRESH in next_identity(idle, FRESH).values()) == is_taken
    assert (bumped.next_producer_id == FRESH) == is_taken


def test_a_vote_that_used_up_the_epochs_takes_one(make_txn: MakeTxn) -> None:
    vote = make_txn(State.VOTED, producer_epoch=32767)
    aborted = prepare_bumped(
        vote,
        State.PREPARE_ABORT,
        20_000,
        fresh_producer_id=FRESH,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )
    assert takes_producer_id(vote) and aborted.next_producer_id == FRESH
