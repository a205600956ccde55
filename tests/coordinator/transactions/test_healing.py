"""What becomes of an open transaction, for every state of its coordinator and every epoch."""

from __future__ import annotations

import pytest

from coordinator.transactions.healing import Remedy, heal, last_ended, marker_epoch
from coordinator.transactions.metadata import (
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
    TxnId,
)
from coordinator.transactions.shard import Shard, TransactionIndex

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
LEAVE, ADOPT, COMMIT, ABORT = Remedy.LEAVE, Remedy.ADOPT, Remedy.COMMIT, Remedy.ABORT


def metadata(
    state: State, epoch: int, begun_epoch: int | None, *, producer_id: int = 1
) -> TransactionMetadata:
    """`tx` of producer 1 at `epoch`; its current or last transaction began at `begun_epoch`."""
    return TransactionMetadata(
        transactional_id="tx",
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=1,
        state=state,
        updated_at_ms=0,
        partitions=frozenset({A0}) if state is State.ONGOING else frozenset(),
        txn_id=None if begun_epoch is None else TxnId(0, begun_epoch, 0, 1),
        previous_producer_id=1 if producer_id != 1 else -1,
    )


#: (state, current epoch, epoch of the last transaction) -> epoch of the data -> remedy for A1,
#: which the coordinator does not hold.
CASES: dict[tuple[State, int, int | None], dict[int, Remedy]] = {
    (State.EMPTY, 3, None): {2: ABORT, 3: ADOPT, 4: ABORT},
    (State.EMPTY, 3, 1): {1: ABORT, 2: ABORT, 3: ADOPT},
    (State.ONGOING, 3, 3): {2: ABORT, 3: ADOPT, 4: ABORT},
    (State.PREPARE_COMMIT, 3, 3): {2: LEAVE, 3: LEAVE, 4: LEAVE},
    (State.PREPARE_ABORT, 4, 3): {3: LEAVE, 4: LEAVE},
    # Version 1 ends a transaction at its own epoch: open data of it began the next one.
    (State.COMPLETE_COMMIT, 3, 3): {2: ABORT, 3: ADOPT, 4: ABORT},
    (State.COMPLETE_ABORT, 3, 3): {2: ABORT, 3: ADOPT},
    # Version 2, timeouts and fences bump the epoch: data below it shares the recorded outcome.
    (State.COMPLETE_COMMIT, 4, 3): {2: ABORT, 3: COMMIT, 4: ADOPT, 5: ABORT},
    (State.COMPLETE_ABORT, 4, 3): {2: ABORT, 3: ABORT, 4: ADOPT},
    (State.COMPLETE_COMMIT, 0, None): {0: ADOPT, 1: ABORT},
}


@pytest.mark.parametrize(("known", "epochs"), CASES.items(), ids=str)
def test_open_data_is_judged_by_its_epoch(
    known: tuple[State, int, int | None], epochs: dict[int, Remedy]
) -> None:
    txn = metadata(*known)
    judged = {epoch: heal(txn, ProducerIdentity(1, epoch), A1).remedy for epoch in epochs}
    assert judged == epochs


def test_data_that_the_coordinator_holds_is_left_alone() -> None:
    txn = metadata(State.ONGOING, 3, 3)
    assert heal(txn, ProducerIdentity(1, 3), A0).remedy is LEAVE


def test_data_of_nobody_is_aborted() -> None:
    assert heal(None, ProducerIdentity(7, 0), A0).remedy is ABORT


@pytest.mark.parametrize(
    ("state", "remedy"), [(State.COMPLETE_COMMIT, COMMIT), (State.COMPLETE_ABORT, ABORT)]
)
def test_data_before_a_rotation_shares_the_outcome_recorded_at_it(
    state: State, remedy: Remedy
) -> None:
    txn = metadata(state, 0, 32766, producer_id=2)
    assert last_ended(txn) == (1, 32766)
    assert heal(txn, ProducerIdentity(1, 32766), A0).remedy is remedy
    assert heal(txn, ProducerIdentity(1, 5), A0).remedy is ABORT
    assert heal(txn, ProducerIdentity(2, 0), A0).remedy is ADOPT


def test_the_marker_fences_the_data_and_not_the_producer_that_goes_on() -> None:
    assert marker_epoch(ProducerIdentity(1, 3)) == 4
    assert marker_epoch(ProducerIdentity(1, 32767)) == 32767


def test_the_index_knows_whose_producer_id_it_is_over_rotations_and_tombstones() -> None:
    index = TransactionIndex()
    shards = [Shard(0, index), Shard(1, index)]
    shards[0].apply(metadata(State.ONGOING, 0, 0))
    assert (index.transactional_id(1), index.open_count) == ("tx", 1)
    shards[0].apply(metadata(State.COMPLETE_COMMIT, 0, 32766, producer_id=2))
    assert [index.transactional_id(one) for one in (1, 2, 3)] == ["tx", "tx", None]
    assert index.open_count == 0
    shards[0].remove("tx")
    assert len(index) == 0
    shards[1].remove("never was")
    assert (len(index), index.open_count) == (0, 0)
