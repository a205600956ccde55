"""What is forgotten and what is kept where partitions and shards change their nodes. Pure."""

from __future__ import annotations

import pytest

from coordinator.transactions import coordinator_fences
from coordinator.transactions.coordinator_fences import CoordinatorFences
from coordinator.transactions.metadata import State, TopicPartition, TransactionMetadata
from coordinator.transactions.remembered_holds import RememberedHolds
from coordinator.transactions.shard import Shard, TransactionIndex

HERE, THERE = TopicPartition("a", 0), TopicPartition("a", 1)


def txn(name: str, producer_id: int, state: State = State.ONGOING) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=1000,
        state=state,
        partitions=frozenset({HERE}),
        started_at_ms=producer_id,
        updated_at_ms=producer_id,
    )


def test_a_shard_is_in_the_index_from_its_joining_until_it_leaves() -> None:
    index = TransactionIndex()
    other = Shard(0, index)
    other.apply(txn("stays", 1))
    shard = Shard(1)
    shard.apply(txn("open", 2))
    shard.apply(txn("ended", 3, State.COMPLETE_COMMIT))
    assert index.transactional_id(2) is None
    shard.join(index)
    assert (index.open_count, len(index)) == (2, 3)
    assert (index.transactional_id(2), index.transactional_id(3)) == ("open", "ended")
    shard.leave()
    assert (index.open_count, len(index)) == (1, 1)
    # Whatever still holds the shard changes the index no more.
    shard.apply(txn("late", 4))
    assert index.transactional_id(4) is None and index.transactional_id(1) == "stays"


def test_what_a_partition_holds_is_forgotten_with_it_alone() -> None:
    holds = RememberedHolds()
    question = holds.ask("id", 7, 0)
    holds.answered(question, (HERE, THERE))
    holds.forget_partition(HERE)
    assert not holds.holds("id", 7, 0, HERE) and holds.holds("id", 7, 0, THERE)


def test_an_answer_about_a_partition_that_has_gone_meanwhile_is_void() -> None:
    holds = RememberedHolds()
    question = holds.ask("id", 7, 0)
    holds.forget_partition(HERE)
    holds.answered(question, (HERE, THERE))
    assert not holds.holds("id", 7, 0, HERE) and holds.holds("id", 7, 0, THERE)


def test_a_former_coordinator_is_fenced_for_the_producers_of_its_successor() -> None:
    fences = CoordinatorFences()
    assert not fences.is_fenced(7, 0)
    fences.raise_to(7, 5)
    fences.raise_to(7, 3)
    assert fences.is_fenced(7, 4)
    assert not fences.is_fenced(7, 5) and not fences.is_fenced(8, 0)


def test_the_oldest_fences_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_fences, "REMEMBERED_MAX", 2)
    fences = CoordinatorFences()
    for producer_id in (1, 2, 1, 3):
        fences.raise_to(producer_id, 5)
    assert len(fences) == 2
    assert [fences.is_fenced(each, 0) for each in (1, 2, 3)] == [True, False, True]
