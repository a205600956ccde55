"""EndTxn up to v4: for every state, outcome and epoch relation; a retry of what was decided is
success."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.decision import Decision
from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.metadata import ProducerIdentity, State, TransactionMetadata
from wire.error_code import ErrorCode
from wire.errors import KafkaError

MakeTxn = Callable[..., TransactionMetadata]

CURRENT = ProducerIdentity(1000, 5)


def decide(
    txn: TransactionMetadata | None, identity: ProducerIdentity, *, commit: bool
) -> Decision[TransactionMetadata, object]:
    return end_txn(
        txn,
        identity,
        commit=commit,
        transaction_version=1,
        coordinator_partition=7,
        fresh_producer_id=9000,
        now_ms=50_000,
    )


def refusal(txn: TransactionMetadata | None, identity: ProducerIdentity, commit: bool) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        decide(txn, identity, commit=commit)
    return refused.value.code


@pytest.mark.parametrize(
    ("commit", "state"), [(True, State.PREPARE_COMMIT), (False, State.PREPARE_ABORT)]
)
def test_an_open_transaction_is_decided(commit: bool, state: State, make_txn: MakeTxn) -> None:
    ongoing = make_txn(State.ONGOING)
    (txn,) = decide(ongoing, CURRENT, commit=commit).records
    assert (txn.state, txn.updated_at_ms) == (state, 50_000)
    assert (txn.identity, txn.partitions, txn.txn_id) == (
        CURRENT,
        ongoing.partitions,
        ongoing.txn_id,
    )


@pytest.mark.parametrize(
    ("state", "commit"),
    [
        (State.PREPARE_COMMIT, True),
        (State.COMPLETE_COMMIT, True),
        (State.PREPARE_ABORT, False),
        (State.COMPLETE_ABORT, False),
    ],
)
def test_a_retry_of_the_same_outcome_is_success(
    state: State, commit: bool, make_txn: MakeTxn
) -> None:
    assert decide(make_txn(state), CURRENT, commit=commit).records == ()


@pytest.mark.parametrize(
    ("state", "commit"),
    [
        (State.EMPTY, True),
        (State.EMPTY, False),
        (State.PREPARE_COMMIT, False),
        (State.COMPLETE_COMMIT, False),
        (State.PREPARE_ABORT, True),
        (State.COMPLETE_ABORT, True),
    ],
)
def test_an_outcome_cannot_be_changed_or_invented(
    state: State, commit: bool, make_txn: MakeTxn
) -> None:
    assert refusal(make_txn(state), CURRENT, commit) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("state", sorted(set(State) - {State.DEAD, State.PREPARE_EPOCH_FENCE}))
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("identity", "code"),
    [
        (ProducerIdentity(1000, 4), ErrorCode.PRODUCER_FENCED),
        (ProducerIdentity(1000, 6), ErrorCode.PRODUCER_FENCED),
        (ProducerIdentity(999, 5), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_another_producer_is_refused_in_every_state(
    state: State, commit: bool, identity: ProducerIdentity, code: ErrorCode, make_txn: MakeTxn
) -> None:
    assert refusal(make_txn(state), identity, commit) is code


def test_an_unknown_id_has_no_producer() -> None:
    assert refusal(None, CURRENT, True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
