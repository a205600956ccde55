"""InitProducerId: one current identity, every other one fenced, for every state and every claim."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.init_producer_id import (
    check_timeout,
    check_transactional_id,
    claimed_identity,
    init_producer_id,
)
from coordinator.transactions.metadata import ProducerIdentity, State, TransactionMetadata
from wire.error_code import ErrorCode
from wire.errors import KafkaError

MakeTxn = Callable[..., TransactionMetadata]

FRESH = 9000
NOW = 50_000
IDLE = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
CURRENT = ProducerIdentity(1000, 5)
STALE = ProducerIdentity(1000, 4)
AHEAD = ProducerIdentity(1000, 6)
STRANGER = ProducerIdentity(999, 5)


def decide(
    txn: TransactionMetadata | None, claimed: ProducerIdentity | None = None
) -> TransactionMetadata | None:
    """Return the record decided, None where there is none."""
    records = init_producer_id(
        txn,
        "tx-1",
        claimed=claimed,
        timeout_ms=1234,
        fresh_producer_id=FRESH,
        now_ms=NOW,
    ).records
    assert len(records) <= 1
    return records[0] if records else None


def refusal(txn: TransactionMetadata | None, claimed: ProducerIdentity | None) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        decide(txn, claimed)
    return refused.value.code


@pytest.mark.parametrize("claimed", [None, CURRENT])
def test_an_unknown_id_starts_with_a_fresh_producer_at_epoch_0(
    claimed: ProducerIdentity | None,
) -> None:
    txn = decide(None, claimed)
    assert txn is not None
    assert (txn.transactional_id, txn.state, txn.identity) == ("tx-1", State.EMPTY, (FRESH, 0))
    assert (txn.timeout_ms, txn.updated_at_ms, txn.txn_id) == (1234, NOW, None)


@pytest.mark.parametrize("state", IDLE)
def test_a_new_incarnation_fences_the_earlier_one(state: State, make_txn: MakeTxn) -> None:
    txn = decide(make_txn(state))
    assert txn is not None
    assert (txn.state, txn.identity, txn.last_producer_epoch) == (State.EMPTY, (1000, 6), -1)
    assert (txn.timeout_ms, txn.started_at_ms, txn.partitions) == (1234, -1, frozenset())


@pytest.mark.parametrize("state", IDLE)
def test_a_producer_may_bump_its_own_epoch(state: State, make_txn: MakeTxn) -> None:
    txn = decide(make_txn(state), CURRENT)
    assert txn is not None
    assert (txn.state, txn.identity, txn.last_producer_epoch) == (State.EMPTY, (1000, 6), 5)


def test_a_retried_bump_is_answered_again_without_another(make_txn: MakeTxn) -> None:
    assert decide(make_txn(State.EMPTY, last_producer_epoch=4), STALE) is None


@pytest.mark.parametrize("state", [State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_a_producer_whose_end_has_bumped_its_epoch_begins_anew_with_it(
    state: State, make_txn: MakeTxn
) -> None:
    txn = decide(make_txn(state, last_producer_epoch=4), STALE)
    assert txn is not None
    assert (txn.state, txn.identity, txn.last_producer_epoch) == (State.EMPTY, CURRENT, 4)
    assert (txn.timeout_ms, txn.started_at_ms, txn.partitions) == (1234, -1, frozenset())
    assert decide(txn, STALE) is None


@pytest.mark.parametrize("state", [*IDLE, State.ONGOING, *PREPARED])
@pytest.mark.parametrize("claimed", [STALE, AHEAD, STRANGER])
def test_a_claim_to_another_identity_is_fenced_and_touches_nothing(
    state: State, claimed: ProducerIdentity, make_txn: MakeTxn
) -> None:
    assert refusal(make_txn(state), claimed) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("state", PREPARED)
@pytest.mark.parametrize("claimed", [None, CURRENT])
def test_due_markers_come_first(
    state: State, claimed: ProducerIdentity | None, make_txn: MakeTxn
) -> None:
    assert refusal(make_txn(state), claimed) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_an_open_transaction_is_aborted_at_a_bumped_epoch(make_txn: MakeTxn) -> None:
    ongoing = make_txn(State.ONGOING)
    txn = decide(ongoing)
    assert txn is not None
    assert (txn.state, txn.identity, txn.last_producer_epoch) == (
        State.PREPARE_ABORT,
        (1000, 6),
        -1,
    )
    assert (txn.partitions, txn.txn_id) == (ongoing.partitions, ongoing.txn_id)


def test_the_owner_of_an_open_transaction_gets_on_after_its_abort(make_txn: MakeTxn) -> None:
    aborting = decide(make_txn(State.ONGOING), CURRENT)
    assert aborting is not None
    assert (aborting.state, aborting.identity) == (State.PREPARE_ABORT, (1000, 6))
    aborted = make_txn(
        State.COMPLETE_ABORT,
        producer_epoch=aborting.producer_epoch,
        last_producer_epoch=aborting.last_producer_epoch,
    )
    emptied = decide(aborted, CURRENT)
    assert emptied is not None and (emptied.state, emptied.identity) == (State.EMPTY, (1000, 6))
    # The abort was this request's: no EndTxn asked for it, so none is a retry.
    for commit in (True, False):
        with pytest.raises(KafkaError) as refused:
            end_txn(
                emptied,
                emptied.identity,
                commit=commit,
                transaction_version=1,
                coordinator_partition=0,
                fresh_producer_id=FRESH,
                now_ms=NOW,
            )
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE


def test_a_late_retry_cannot_abort_the_transaction_begun_since(make_txn: MakeTxn) -> None:
    ongoing = make_txn(State.ONGOING, last_producer_epoch=4)
    assert refusal(ongoing, STALE) is ErrorCode.PRODUCER_FENCED


class TestExhaustedEpochs:
    """32766 is the last epoch a client gets; 32767 is left for the fence of its transaction."""

    def test_the_last_epoch_is_given(self, make_txn: MakeTxn) -> None:
        txn = decide(make_txn(State.EMPTY, producer_epoch=32765))
        assert txn is not None and txn.identity == (1000, 32766)

    @pytest.mark.parametrize("epoch", [32766, 32767])
    @pytest.mark.parametrize("state", IDLE)
    def test_the_next_needs_a_fresh_producer_id(
        self, state: State, epoch: int, make_txn: MakeTxn
    ) -> None:
        txn = decide(make_txn(state, producer_epoch=epoch))
        assert txn is not None
        assert (txn.state, txn.identity) == (State.EMPTY, (FRESH, 0))
        assert (txn.previous_producer_id, txn.last_producer_epoch) == (1000, -1)

    def test_an_open_transaction_can_still_be_fenced(self, make_txn: MakeTxn) -> None:
        txn = decide(make_txn(State.ONGOING, producer_epoch=32766))
        assert txn is not None
        assert (txn.state, txn.producer_epoch) == (State.PREPARE_ABORT, 32767)

    def test_a_retried_rotation_is_answered_again(self, make_txn: MakeTxn) -> None:
        claimed = ProducerIdentity(1000, 32766)
        rotated = decide(make_txn(State.EMPTY, producer_epoch=32766), claimed)
        assert rotated is not None
        assert (rotated.identity, rotated.last_producer_epoch) == ((FRESH, 0), 32766)
        assert decide(rotated, claimed) is None

    def test_the_previous_id_is_fenced_below_its_last_epoch(self, make_txn: MakeTxn) -> None:
        rotated = make_txn(
            State.EMPTY, producer_epoch=0, previous_producer_id=999, last_producer_epoch=32766
        )
        assert refusal(rotated, ProducerIdentity(999, 3)) is ErrorCode.PRODUCER_FENCED

    def test_nobody_is_given_the_epoch_of_the_fence(self, make_txn: MakeTxn) -> None:
        claimed = ProducerIdentity(1000, 32766)
        aborted = make_txn(State.COMPLETE_ABORT, producer_epoch=32767, last_producer_epoch=32766)
        txn = decide(aborted, claimed)
        assert txn is not None
        assert (txn.identity, txn.last_producer_epoch) == ((FRESH, 0), 32766)


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_timeouts_within_the_bound_are_taken(timeout_ms: int) -> None:
    check_timeout(timeout_ms, 900_000)


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
def test_timeouts_outside_the_bound_are_refused(timeout_ms: int) -> None:
    with pytest.raises(KafkaError) as refused:
        check_timeout(timeout_ms, 900_000)
    assert refused.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_an_empty_transactional_id_is_invalid_and_none_is_not() -> None:
    check_transactional_id(None)
    check_transactional_id("tx-1")
    with pytest.raises(KafkaError) as refused:
        check_transactional_id("")
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_half_an_identity_is_invalid() -> None:
    assert claimed_identity(-1, -1) is None
    assert claimed_identity(1000, 5) == CURRENT
    assert claimed_identity(-2, 0) == (-2, 0)
    for producer_id, producer_epoch in ((1000, -1), (-1, 5), (-2, -1), (-1, -2)):
        with pytest.raises(KafkaError) as refused:
            claimed_identity(producer_id, producer_epoch)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
