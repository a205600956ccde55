"""Static members of consumer groups: away for a while, replaced, fenced."""

from __future__ import annotations

import pytest

from tests.coordinator.groups.consumer_world import World
from wire.error_code import ErrorCode
from wire.errors import KafkaError


@pytest.fixture
def world() -> World:
    world = World()
    world.join("a", "orders", instance_id="one")
    return world


def refused(world: World, member_id: str, epoch: int) -> ErrorCode:
    said = {"topic_names": frozenset({"orders"}), "owned": {}, "rebalance_timeout_ms": 1}
    with pytest.raises(KafkaError) as refusal:
        world.heartbeat(member_id, epoch, instance_id="one", **(said if epoch == 1 else {}))
    return refusal.value.code


def test_a_member_that_is_away_keeps_its_partitions_and_gets_them_back(world: World) -> None:
    before = world.assigned("a")
    world.leave("a", -2, instance_id="one")
    assert world.assigned("a") == before
    answer = world.join("b", "orders", instance_id="one")
    assert answer.member_epoch == 2, "nothing was assigned anew"
    assert world.assigned("b") == before
    assert "a" not in world.group.members
    world.check_replay()


def test_an_instance_that_is_there_is_not_given_away(world: World) -> None:
    assert refused(world, "b", 0) is ErrorCode.UNRELEASED_INSTANCE_ID


def test_the_one_that_was_replaced_is_fenced(world: World) -> None:
    world.leave("a", -2, instance_id="one")
    world.join("b", "orders", instance_id="one")
    assert refused(world, "a", 2) is ErrorCode.FENCED_INSTANCE_ID
    with pytest.raises(KafkaError) as refusal:
        world.leave("a", -2, instance_id="one")
    assert refusal.value.code is ErrorCode.FENCED_INSTANCE_ID


def test_an_instance_nobody_has_is_unknown(world: World) -> None:
    with pytest.raises(KafkaError) as refusal:
        world.heartbeat("a", 2, instance_id="two")
    assert refusal.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_for_good_frees_its_instance(world: World) -> None:
    world.leave("a", -1, instance_id="one")
    assert world.group.static_members == {}
    assert world.join("b", "orders", instance_id="one").member_epoch == 4
    world.check_replay()
