"""The plan of a decision whose partitions several nodes lead, or whose markers make files."""

from __future__ import annotations

import pytest

from coordinator.transactions.commit_plan import (
    MAKING_FILES_AT_ONCE_MAX,
    MARKERS_AT_ONCE_MAX,
    PLANS,
    Decided,
    LedHere,
    Part,
    Plan,
    Planned,
    Storage,
    planned,
)
from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    State,
    TopicPartition,
    TransactionMetadata,
    Vote,
)
from tests.coordinator.transactions.conftest import A0, MakeTxn

B0 = TopicPartition("b", 0)
VERSIONS = [TRANSACTION_VERSION_1, TRANSACTION_VERSION_2]


def led_here(partition: TopicPartition) -> bool:
    return partition.topic == "a"


def planned_of(
    decided: TransactionMetadata,
    storage: Storage,
    *,
    known: TransactionMetadata | None = None,
    is_led_here: LedHere | None = led_here,
    making_files: int = 0,
) -> Planned:
    return planned(
        (decided,),
        storage,
        lambda _: known,
        is_ending=False,
        is_led_here=is_led_here,
        count_making_files=lambda _: making_files,
    )


def plan_of(
    decided: TransactionMetadata, storage: Storage, known: TransactionMetadata | None = None
) -> Plan:
    return planned_of(decided, storage, known=known).plan


@pytest.mark.parametrize("storage", Storage)
@pytest.mark.parametrize("version", VERSIONS)
def test_no_other_node_gets_a_marker_before_the_decision_is_durable(
    make_txn: MakeTxn, storage: Storage, version: int
) -> None:
    decided = make_txn(
        State.PREPARE_COMMIT, partitions=frozenset({A0, B0}), client_transaction_version=version
    )
    plan = plan_of(decided, storage=storage)
    assert plan is PLANS[storage, Decided.OVER_NODES]
    assert Part.PREPARE in plan.first and Part.ELSEWHERE not in plan.first


def test_the_decision_stays_prepared_where_another_node_has_to_append(make_txn: MakeTxn) -> None:
    decided = make_txn(State.PREPARE_ABORT, partitions=frozenset({A0, B0}))
    found = planned_of(decided, Storage.ALL_OR_NOTHING)
    assert found.records == (decided,)
    assert [work.partitions for work in found.work] == [{A0, B0}]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transaction_within_one_node_keeps_its_plan(make_txn: MakeTxn, version: int) -> None:
    decided = make_txn(State.PREPARE_COMMIT, client_transaction_version=version)
    for storage in Storage:
        alone = planned_of(decided, storage, is_led_here=None)
        assert plan_of(decided, storage=storage) is alone.plan


def test_markers_of_a_vote_count_too(make_txn: MakeTxn) -> None:
    child = make_txn(
        State.VOTED, transactional_id="tx-1~>c", parent_id="tx-1", partitions=frozenset({B0})
    )
    vote = Vote(child.transactional_id, *child.identity)
    decided = make_txn(State.PREPARE_COMMIT, votes=(vote,))
    assert plan_of(decided, storage=Storage.ALL_OR_NOTHING, known=child) is Plan.OWN_WITH_DECISION


def test_very_many_markers_go_in_slices_wherever_they_go(make_txn: MakeTxn) -> None:
    many = frozenset(TopicPartition("b", index) for index in range(MARKERS_AT_ONCE_MAX + 1))
    decided = make_txn(State.PREPARE_COMMIT, partitions=many)
    assert plan_of(decided, storage=Storage.ALL_OR_NOTHING) is Plan.IN_SLICES


@pytest.mark.parametrize("storage", Storage)
@pytest.mark.parametrize("version", VERSIONS)
def test_markers_that_make_files_are_appended_in_slices(
    make_txn: MakeTxn, storage: Storage, version: int
) -> None:
    some = frozenset(TopicPartition("b", index) for index in range(MAKING_FILES_AT_ONCE_MAX + 1))
    decided = make_txn(State.PREPARE_COMMIT, client_transaction_version=version, partitions=some)

    def plan_with(making_files: int) -> Plan:
        return planned_of(decided, storage, is_led_here=None, making_files=making_files).plan

    assert plan_with(MAKING_FILES_AT_ONCE_MAX + 1) is Plan.IN_SLICES
    # A few fit into the turn, and are not worth another sync.
    usual = planned_of(decided, storage, is_led_here=None).plan
    assert plan_with(MAKING_FILES_AT_ONCE_MAX) is usual is not Plan.IN_SLICES
