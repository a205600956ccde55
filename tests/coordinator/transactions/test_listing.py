"""The filters of ListTransactions decide as Apache Kafka 4.3's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.transactions.listing import Filters, parse_states
from coordinator.transactions.metadata import State, TransactionMetadata

MakeTxn = Callable[..., TransactionMetadata]

#: The transactions of `make_txn` began at 10 s.
NOW_MS = 15_000


@pytest.mark.parametrize("state", State)
def test_every_state_is_known_by_kafkas_name(state: State) -> None:
    # Clients are told that a voted transaction is Ongoing, so a filter for Ongoing finds it.
    also = {State.VOTED} if state is State.ONGOING else set()
    assert parse_states([state.label]) == (frozenset({state} | also), [])


def test_unknown_states_are_reported_once_in_their_order() -> None:
    names = ["Foo", "Ongoing", "ongoing", "Foo", ""]
    assert parse_states(names) == (frozenset({State.ONGOING, State.VOTED}), ["Foo", "ongoing", ""])


@pytest.mark.parametrize(
    ("filters", "is_admitted"),
    [
        ({}, True),
        ({"states": {State.ONGOING, State.EMPTY}}, True),
        ({"states": {State.EMPTY}}, False),
        ({"states": frozenset()}, False),  # only unknown states were asked for
        ({"producer_ids": {1000, 7}}, True),
        ({"producer_ids": {7}}, False),
        ({"longer_than_ms": 4_999}, True),
        ({"longer_than_ms": 5_000}, False),  # longer, not as long
        ({"longer_than_ms": 0}, True),
        ({"longer_than_ms": -7}, True),
        ({"longer_than_ms": 2**63 - 1}, False),
        ({"states": {State.ONGOING}, "producer_ids": {7}}, False),  # all must hold
    ],
)
def test_each_filter_decides(filters: Any, is_admitted: bool, make_txn: MakeTxn) -> None:
    txn = make_txn(State.ONGOING)
    assert list(Filters(**filters).select([txn], NOW_MS)) == [txn] * is_admitted


def test_an_ended_transaction_counts_from_its_begin_and_none_as_the_oldest(
    make_txn: MakeTxn,
) -> None:
    ended, never_begun = make_txn(State.COMPLETE_COMMIT), make_txn(State.EMPTY)
    select = Filters(longer_than_ms=10_000).select
    assert list(select([ended, never_begun], NOW_MS)) == [never_begun]
    assert list(select([ended, never_begun], NOW_MS + 10_000)) == [ended, never_begun]


def test_an_expired_id_is_not_listed(make_txn: MakeTxn) -> None:
    dead = make_txn(State.DEAD)
    assert not list(Filters(states={State.DEAD}).select([dead], NOW_MS))
