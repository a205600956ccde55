"""AddPartitionsToTxn, AddOffsetsToTxn: for every state and every epoch relation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.transactions.add_partitions import add_partitions
from coordinator.transactions.metadata import (
    COUNT_MAX,
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
    TxnId,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError

MakeTxn = Callable[..., TransactionMetadata]

A0, B3 = TopicPartition("a", 0), TopicPartition("b", 3)
CURRENT = ProducerIdentity(1000, 5)
NOW = 50_000
IDLE = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


def decide(
    txn: TransactionMetadata | None,
    partitions: set[TopicPartition],
    identity: ProducerIdentity = CURRENT,
) -> TransactionMetadata | None:
    records = add_partitions(
        txn,
        identity,
        partitions,
        coordinator_partition=7,
        now_ms=NOW,
        transaction_version=2,
    ).records
    assert len(records) <= 1
    return records[0] if records else None


@pytest.mark.parametrize("state", IDLE)
def test_the_first_partition_begins_a_transaction(state: State, make_txn: MakeTxn) -> None:
    txn = decide(make_txn(state, txn_id=None), {A0, B3})
    assert txn is not None
    assert (txn.state, txn.partitions) == (State.ONGOING, frozenset({A0, B3}))
    assert (txn.started_at_ms, txn.updated_at_ms) == (NOW, NOW)
    assert txn.txn_id == TxnId(7, 5, 0, 1000)


def test_later_partitions_join_the_transaction(make_txn: MakeTxn) -> None:
    ongoing = make_txn(State.ONGOING)
    txn = decide(ongoing, {B3})
    assert txn is not None
    assert txn.partitions == {A0, B3}
    assert (txn.started_at_ms, txn.txn_id) == (ongoing.started_at_ms, ongoing.txn_id)


def test_what_is_held_already_is_not_logged_again(make_txn: MakeTxn) -> None:
    assert decide(make_txn(State.ONGOING), {A0}) is None


def test_a_transaction_may_begin_without_partitions(make_txn: MakeTxn) -> None:
    txn = decide(make_txn(State.EMPTY), set())
    assert txn is not None
    assert (txn.state, txn.partitions) == (State.ONGOING, frozenset())


@pytest.mark.parametrize(
    ("last", "count"),
    [
        (TxnId(7, 5, 3, 1000), 4),
        (TxnId(7, 4, 3, 1000), 0),  # of an earlier epoch
        (TxnId(7, 5, 3, 999), 0),  # of the producer id before a rotation
    ],
)
def test_transactions_are_counted_within_their_epoch(
    last: TxnId, count: int, make_txn: MakeTxn
) -> None:
    txn = decide(make_txn(State.COMPLETE_COMMIT, txn_id=last), {A0})
    assert txn is not None and txn.txn_id == TxnId(7, 5, count, 1000)


def test_an_epoch_that_has_counted_its_last_is_over(make_txn: MakeTxn) -> None:
    txn = make_txn(State.COMPLETE_COMMIT, txn_id=TxnId(7, 5, COUNT_MAX, 1000))
    with pytest.raises(KafkaError) as refused:
        decide(txn, {A0})
    assert refused.value.code is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_due_markers_come_first(state: State, make_txn: MakeTxn) -> None:
    with pytest.raises(KafkaError) as refused:
        decide(make_txn(state), {A0})
    assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("state", sorted(set(State) - {State.DEAD, State.PREPARE_EPOCH_FENCE}))
@pytest.mark.parametrize(
    ("identity", "code"),
    [
        (ProducerIdentity(1000, 4), ErrorCode.PRODUCER_FENCED),
        (ProducerIdentity(1000, 6), ErrorCode.PRODUCER_FENCED),
        (ProducerIdentity(999, 5), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_another_producer_is_refused_in_every_state(
    state: State, identity: ProducerIdentity, code: ErrorCode, make_txn: MakeTxn
) -> None:
    with pytest.raises(KafkaError) as refused:
        decide(make_txn(state), {A0}, identity)
    assert refused.value.code is code


def test_an_unknown_id_has_no_producer() -> None:
    with pytest.raises(KafkaError) as refused:
        decide(None, {A0})
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
