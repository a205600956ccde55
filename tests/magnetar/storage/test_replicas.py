"""Replicas of a cluster: who leads after whom, what clients are told, what they may ask for."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.storage.replicas import Known, by_weight, check_assignment, heir, told
from wire.error_code import ErrorCode
from wire.errors import KafkaError

_TOPIC = UUID(int=7)
_FIVE = Known((1, 2, 3, 4, 5), (1, 2, 3, 4, 5))


@given(st.integers(0, 99), st.integers(1, 5), st.integers(1, 5))
def test_the_leader_comes_first_and_its_heirs_follow(
    partition: int, leader: int, factor: int
) -> None:
    replicas = told(_TOPIC, partition, leader, factor, _FIVE)
    assert replicas[0] == leader
    assert len({*replicas}) == factor
    others = [node_id for node_id in _FIVE.live if node_id != leader]
    if 1 < factor < 5:
        assert replicas[1] == heir(_TOPIC, partition, others), "the one that takes it over"
        assert [*replicas[1:]] == by_weight(_TOPIC, partition, others)[: factor - 1]


def test_live_nodes_are_replicas_before_those_that_are_gone() -> None:
    two_are_gone = Known((1, 2, 5), (1, 2, 3, 4, 5))
    for partition in range(20):
        assert {*told(_TOPIC, partition, 2, 3, two_are_gone)} == {1, 2, 5}
    assert {*told(_TOPIC, 0, 2, 4, two_are_gone)} > {1, 2, 5}


def test_there_are_no_more_replicas_than_nodes() -> None:
    assert told(_TOPIC, 0, 1, 3, Known((1,), (1,))) == (1,)
    assert told(_TOPIC, 0, 2, 3, Known((2,), (1, 2, 3))) == (2, 1, 3)


def test_assigned_replicas_are_told_as_they_were_assigned() -> None:
    assert told(_TOPIC, 0, 1, 3, _FIVE, (3, 1)) == (3, 1)
    assert told(_TOPIC, 0, 5, 3, _FIVE, (3, 1)) == (3, 5), "all assigned ones were gone"
    assert told(_TOPIC, 0, 5, 1, _FIVE, (3,)) == (5,)


def test_the_first_assigned_node_that_lives_leads() -> None:
    assert heir(_TOPIC, 0, (1, 2, 3), (9, 3, 1)) == 3
    assert heir(_TOPIC, 0, (1, 2), (9, 8)) == heir(_TOPIC, 0, (1, 2))


@pytest.mark.parametrize(
    ("replicas", "reason"),
    [
        ([1, 9], "broker 9"),
        ([], "empty replica list"),
        ([1, 2, 2], "broker 2 more than once"),
        ([3], "fenced"),
    ],
)
def test_an_assignment_that_cannot_be_had_is_refused(replicas: list[int], reason: str) -> None:
    with pytest.raises(KafkaError, match=reason) as refused:
        check_assignment(replicas, Known((1, 2), (1, 2, 3)))
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_one_that_is_gone_may_be_assigned_beside_one_that_lives() -> None:
    assert check_assignment([3, 1], Known((1, 2), (1, 2, 3))) == (3, 1)


def test_where_nodes_share_a_disk_there_is_one_replica() -> None:
    nodes = Known((1, 2), (1, 2))
    assert check_assignment([2], nodes, one_disk="one disk") == (2,)
    with pytest.raises(KafkaError, match="one disk") as refused:
        check_assignment([2, 1], nodes, one_disk="one disk")
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("one_disk", ["", "one disk"])
def test_all_partitions_of_a_topic_have_as_many_replicas(one_disk: str) -> None:
    nodes = Known((1, 2, 3), (1, 2, 3))
    assert check_assignment([2], nodes, factor=1, one_disk=one_disk) == (2,)
    with pytest.raises(KafkaError, match="not consistent") as refused:
        check_assignment([2, 1], nodes, factor=1, one_disk=one_disk)
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
