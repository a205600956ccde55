"""Op before data: only the ongoing transaction that holds a partition may write to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.transactions.add_partitions import check_holds, verified
from coordinator.transactions.metadata import (
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
)
from magnetar.apis.transaction_versions import code_for_version
from wire.error_code import ErrorCode
from wire.errors import KafkaError

MakeTxn = Callable[..., TransactionMetadata]


def refusal(
    txn: TransactionMetadata | None,
    producer_id: int = 1000,
    producer_epoch: int = 5,
    partition: tuple[str, int] = ("a", 0),
    *,
    is_abortable_known: bool = True,
) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        check_holds(
            txn, producer_id, producer_epoch, partition, is_abortable_known=is_abortable_known
        )
    return refused.value.code


def test_data_of_the_transaction_that_holds_the_partition_is_taken(make_txn: MakeTxn) -> None:
    check_holds(make_txn(State.ONGOING), 1000, 5, ("a", 0), is_abortable_known=True)


@pytest.mark.parametrize("partition", [("a", 1), ("b", 0)])
def test_data_before_its_op_is_refused(partition: tuple[str, int], make_txn: MakeTxn) -> None:
    txn = make_txn(State.ONGOING)
    assert refusal(txn, partition=partition) is ErrorCode.TRANSACTION_ABORTABLE
    old = refusal(txn, partition=partition, is_abortable_known=False)
    assert old is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("state", sorted(set(State) - {State.ONGOING}))
def test_data_after_the_decision_is_refused(state: State, make_txn: MakeTxn) -> None:
    assert refusal(make_txn(state)) is ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("epoch", [4, 6])
@pytest.mark.parametrize("is_abortable_known", [True, False])
def test_a_zombies_data_is_refused_in_every_version(
    state: State, epoch: int, is_abortable_known: bool, make_txn: MakeTxn
) -> None:
    code = refusal(make_txn(state), producer_epoch=epoch, is_abortable_known=is_abortable_known)
    assert code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_producer_that_no_coordinator_knows_is_refused(make_txn: MakeTxn) -> None:
    assert refusal(None) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    strange = refusal(make_txn(State.ONGOING), producer_id=999)
    assert strange is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("state", State)
def test_a_leader_that_verifies_hears_that_a_zombie_is_fenced(
    state: State, make_txn: MakeTxn
) -> None:
    held, other = TopicPartition("a", 0), TopicPartition("b", 0)
    txn = make_txn(state)
    for epoch in (4, 6):
        found = verified(txn, ProducerIdentity(1000, epoch), [held])
        assert found == {held: ErrorCode.PRODUCER_FENCED}
    strangers = verified(txn, ProducerIdentity(999, 5), [held])
    assert strangers == {held: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    is_open = state is State.ONGOING
    assert verified(txn, ProducerIdentity(1000, 5), [held, other]) == {
        held: ErrorCode.NONE if is_open else ErrorCode.TRANSACTION_ABORTABLE,
        other: ErrorCode.TRANSACTION_ABORTABLE,
    }


def test_older_clients_hear_an_older_code_for_a_fence() -> None:
    fenced, old = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_for_version(fenced, 1, fenced_since=2) is old
    assert code_for_version(fenced, 2, fenced_since=2) is fenced
    other = ErrorCode.INVALID_TXN_STATE
    assert code_for_version(other, 0, fenced_since=2) is other
