"""EndTxn v5 (KIP-890): what an end leaves behind, by values. Who may ask is another table's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.transactions.commit_plan import complete, work_due
from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.epochs import Relation, relation
from coordinator.transactions.metadata import ProducerIdentity, State, TransactionMetadata, TxnId
from coordinator.transactions.records import decode_value, encode_record

MakeTxn = Callable[..., TransactionMetadata]

FRESH = 9000
NOW_MS = 50_000


def end(
    txn: TransactionMetadata, identity: ProducerIdentity, *, commit: bool
) -> list[TransactionMetadata]:
    decision = end_txn(
        txn,
        identity,
        commit=commit,
        transaction_version=2,
        coordinator_partition=7,
        fresh_producer_id=FRESH,
        now_ms=NOW_MS,
    )
    return list(decision.records)


def settled(txn: TransactionMetadata) -> TransactionMetadata:
    """Return what is left when all markers are durable."""
    work = work_due(txn)
    assert work is not None
    (completed,) = complete(txn, work, NOW_MS + 1).records
    return completed


@pytest.mark.parametrize(
    ("commit", "state"), [(True, State.PREPARE_COMMIT), (False, State.PREPARE_ABORT)]
)
def test_data_keeps_the_old_epoch_and_the_marker_has_the_new_one(
    commit: bool, state: State, make_txn: MakeTxn
) -> None:
    ongoing = make_txn(State.ONGOING)
    (txn,) = end(ongoing, ongoing.identity, commit=commit)
    assert (txn.state, txn.identity, txn.last_producer_epoch) == (state, (1000, 6), 5)
    assert (txn.client_transaction_version, txn.next_producer_id) == (2, -1)
    assert (txn.txn_id, txn.partitions) == (ongoing.txn_id, ongoing.partitions)
    work = work_due(txn)
    assert work is not None
    assert (work.producer_epoch, work.commit, work.transaction_version) == (6, commit, 2)
    assert txn.successor == settled(txn).identity == (1000, 6)


def test_the_outcome_is_remembered_by_the_epoch_that_asked(make_txn: MakeTxn) -> None:
    ongoing = make_txn(State.ONGOING)
    (prepared,) = end(ongoing, ongoing.identity, commit=True)
    completed = settled(prepared)
    for txn in (prepared, completed):
        assert relation(txn, ongoing.identity) is Relation.LAST
        assert end(txn, ongoing.identity, commit=True) == []


class TestAbortOfNothing:
    """No marker is owed: one record ends it, at a new epoch and under a name of its own."""

    @pytest.mark.parametrize(
        "state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT], ids=str
    )
    def test_the_epoch_is_bumped(self, state: State, make_txn: MakeTxn) -> None:
        before = make_txn(state)
        (txn,) = end(before, before.identity, commit=False)
        assert (txn.state, txn.identity) == (State.COMPLETE_ABORT, (1000, 6))
        assert (txn.last_producer_epoch, txn.started_at_ms) == (5, NOW_MS)
        assert txn.txn_id != before.txn_id
        assert work_due(txn) is None
        assert end(txn, before.identity, commit=False) == []

    def test_the_last_epoch_rotates_the_producer_id_at_once(self, make_txn: MakeTxn) -> None:
        before = make_txn(State.EMPTY, producer_epoch=32766)
        (txn,) = end(before, before.identity, commit=False)
        assert (txn.identity, txn.previous_producer_id) == ((FRESH, 0), 1000)
        assert txn.txn_id == TxnId(7, 32766, 0, 1000)
        assert end(txn, before.identity, commit=False) == []


class TestTheLastEpoch:
    """32766: its marker carries 32767, and who ended it goes on with a fresh producer id."""

    def test_the_fresh_id_is_kept_with_the_decision(self, make_txn: MakeTxn) -> None:
        ongoing = make_txn(State.ONGOING, producer_epoch=32766)
        (txn,) = end(ongoing, ongoing.identity, commit=True)
        assert (txn.identity, txn.next_producer_id) == ((1000, 32767), FRESH)
        assert (txn.successor, txn.last_producer_epoch) == ((FRESH, 0), 32766)
        work = work_due(txn)
        assert work is not None and (work.producer_id, work.producer_epoch) == (1000, 32767)

    def test_completion_rotates(self, make_txn: MakeTxn) -> None:
        ongoing = make_txn(State.ONGOING, producer_epoch=32766)
        (prepared,) = end(ongoing, ongoing.identity, commit=True)
        txn = settled(prepared)
        assert (txn.state, txn.identity) == (State.COMPLETE_COMMIT, (FRESH, 0))
        assert (txn.previous_producer_id, txn.next_producer_id) == (1000, -1)
        assert end(txn, ongoing.identity, commit=True) == []
        assert txn.successor == (FRESH, 0)

    def test_the_retry_is_of_that_epoch_alone(self, make_txn: MakeTxn) -> None:
        rotated = make_txn(
            State.COMPLETE_COMMIT,
            producer_id=FRESH,
            producer_epoch=0,
            previous_producer_id=1000,
            last_producer_epoch=32766,
        )
        for identity, expected in (
            ((1000, 32766), Relation.LAST),
            ((1000, 32765), Relation.OTHER_PRODUCER),
            ((1000, 32767), Relation.OTHER_PRODUCER),
            ((FRESH, 0), Relation.CURRENT),
            ((FRESH, 32766), Relation.OTHER_EPOCH),
        ):
            assert relation(rotated, ProducerIdentity(*identity)) is expected, identity

    def test_what_was_rotated_from_is_forgotten_with_the_next_end(self, make_txn: MakeTxn) -> None:
        ongoing = make_txn(
            State.ONGOING,
            producer_id=FRESH,
            producer_epoch=0,
            previous_producer_id=1000,
            last_producer_epoch=32766,
        )
        (prepared,) = end(ongoing, ongoing.identity, commit=True)
        asked_before = ProducerIdentity(1000, 32766)
        assert relation(prepared, asked_before) is Relation.OTHER_PRODUCER
        assert relation(prepared, ProducerIdentity(1000, 0)) is Relation.OTHER_PRODUCER


def test_version_1_ends_at_the_same_epoch_and_leaves_nothing_to_retry(make_txn: MakeTxn) -> None:
    ongoing = make_txn(State.ONGOING, last_producer_epoch=4, client_transaction_version=2)
    (txn,) = end_txn(
        ongoing,
        ongoing.identity,
        commit=True,
        transaction_version=1,
        coordinator_partition=7,
        fresh_producer_id=FRESH,
        now_ms=NOW_MS,
    ).records
    assert (txn.identity, txn.last_producer_epoch) == ((1000, 5), -1)
    assert txn.client_transaction_version == 1


@pytest.mark.parametrize("epoch", [5, 32766])
def test_the_log_remembers_all_of_it(epoch: int, make_txn: MakeTxn) -> None:
    ongoing = make_txn(State.ONGOING, producer_epoch=epoch)
    (prepared,) = end(ongoing, ongoing.identity, commit=True)
    for txn in (prepared, settled(prepared)):
        value = encode_record(txn).value
        assert value is not None and decode_value("tx-1", value) == txn
