"""Timeouts abort at a bumped epoch, exactly when due; long unused ids are forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.decision import Decision
from coordinator.transactions.expire import Lifetimes, expire, term_of
from coordinator.transactions.metadata import State, TransactionMetadata

MakeTxn = Callable[..., TransactionMetadata]

WEEK_MS = 604_800_000
WEEK = Lifetimes(transactional_id_ms=WEEK_MS, child_ms=2_000, vote_ms=1_000)
IDLE = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


def decide(
    txn: TransactionMetadata | None, lifetimes: Lifetimes, now_ms: int
) -> Decision[TransactionMetadata, object]:
    return expire(txn, lifetimes, now_ms, fresh_producer_id=9000)


def test_a_transaction_is_due_at_its_begin_plus_its_timeout(make_txn: MakeTxn) -> None:
    txn = make_txn(State.ONGOING, updated_at_ms=30_000)
    term = term_of(txn, WEEK)
    assert term is not None and term.due_ms == 70_000
    assert decide(txn, WEEK, 69_999).records == ()


@pytest.mark.parametrize("now_ms", [70_000, 70_000 + WEEK_MS])
def test_a_timed_out_transaction_is_aborted_and_its_producer_fenced(
    now_ms: int, make_txn: MakeTxn
) -> None:
    ongoing = make_txn(State.ONGOING, last_producer_epoch=4)
    (txn,) = decide(ongoing, WEEK, now_ms).records
    assert (txn.state, txn.identity, txn.updated_at_ms) == (State.PREPARE_ABORT, (1000, 6), now_ms)
    assert (txn.partitions, txn.txn_id) == (ongoing.partitions, ongoing.txn_id)
    assert txn.last_producer_epoch == 5  # no takeover: its owner may ask for the new epoch


def test_the_last_epoch_can_time_out_too(make_txn: MakeTxn) -> None:
    (txn,) = decide(make_txn(State.ONGOING, producer_epoch=32766), WEEK, 70_000).records
    assert (txn.producer_epoch, txn.last_producer_epoch) == (32767, 32766)
    assert txn.successor == (9000, 0)


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_a_decided_transaction_has_no_deadline(state: State, make_txn: MakeTxn) -> None:
    txn = make_txn(state)
    assert term_of(txn, WEEK) is None
    assert decide(txn, WEEK, 10 * WEEK_MS).records == ()


@pytest.mark.parametrize("state", IDLE)
def test_an_unused_id_is_forgotten_when_it_expires(state: State, make_txn: MakeTxn) -> None:
    txn = make_txn(state)
    assert decide(txn, WEEK, 10_000 + WEEK_MS - 1).records == ()
    (dead,) = decide(txn, WEEK, 10_000 + WEEK_MS).records
    assert dead.state is State.DEAD


def test_what_is_forgotten_already_has_nothing_due() -> None:
    assert decide(None, WEEK, 10 * WEEK_MS).records == ()
