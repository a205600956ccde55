"""Classic and consumer groups become each other while members of both protocols run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.groups.classic.group import ClassicGroup, GroupLimits, GroupState
from coordinator.groups.classic.requests import LeavingMember
from coordinator.groups.consumer import consumer_protocol
from coordinator.groups.consumer.classic_members import (
    known_classic_member,
    known_leaving_member,
    must_join_again,
)
from coordinator.groups.consumer.consumer_protocol import read_assignments, subscribed_topics
from coordinator.groups.consumer.member import MemberState
from coordinator.groups.consumer.migration import decide_upgrade, is_downgrade_due
from coordinator.groups.consumer.requests import ConsumerLimits
from coordinator.groups.records import GroupRecord
from tests.coordinator.groups.conftest import Driver
from tests.coordinator.groups.consumer_world import GROUP, Place, World, subscription
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.internal.consumer_protocol import ConsumerProtocolAssignment, TopicPartition
from wire.internal.versioned import decode_compatible, encode_versioned

ORDERS = {("orders", n) for n in range(4)}


@pytest.fixture
def world() -> World:
    return World()


def assignment(*places: Place, user_data: bytes | None = None) -> bytes:
    return encode_versioned(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                TopicPartition(topic=topic, partitions=[partition]) for topic, partition in places
            ],
            user_data=user_data,
        )
    )


def classic_group(
    world: World, *given: bytes, metadata: bytes = b"", **fields: Any
) -> ClassicGroup:
    """Put a stable classic group into the shard, a member for each assignment: m1, m2..."""
    driver = Driver()
    driver.group = ClassicGroup(GROUP, GroupLimits())
    said = {"protocols": (("range", metadata or subscription(["orders"])),), **fields}
    for _ in given:
        driver.join(**{"protocol_type": "consumer", **said})
    for member_id in list(driver.group.members):
        driver.join(member_id, **{"protocol_type": "consumer", **said})
    leader = driver.group.leader
    assert leader is not None
    driver.sync(leader, assignments=dict(zip(driver.group.members, given, strict=True)))
    assert driver.group.state is GroupState.STABLE
    world.shard.groups[GROUP] = driver.group
    world.append([GroupRecord(GROUP, driver.records[-1])])
    return driver.group


def refused(world: World, **fields: Any) -> str:
    with pytest.raises(KafkaError) as refusal:
        world.join("new", "orders", **fields)
    assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    return refusal.value.detail


def test_members_of_an_upgraded_group_keep_generation_and_partitions(world: World) -> None:
    group = classic_group(
        world,
        assignment(("orders", 0), ("orders", 1)),
        assignment(("orders", 2), ("orders", 3)),
    )
    first, second = group.members
    generation_id = group.generation_id
    answer = world.join("new", "orders")
    assert answer.assignment == {}, "everything is still others'"
    assert GROUP not in world.shard.groups
    assert world.member(first).epoch == world.member(second).epoch == generation_id
    assert world.assigned(first) | world.assigned(second) == ORDERS
    assert world.group.epoch == generation_id + 1
    for member_id in (first, second):
        assert must_join_again(world.group, world.member(member_id))
    world.check_replay()


def test_what_two_were_assigned_is_only_the_firsts(world: World) -> None:
    group = classic_group(world, *[assignment(("orders", 0), ("gone", 1), ("orders", 9))] * 2)
    first, second = group.members
    world.join("new", "orders")
    assert world.assigned(first) == {("orders", 0)}
    assert world.assigned(second) == set()


def test_groups_that_are_no_consumers_or_would_lose_data_are_not_upgraded(world: World) -> None:
    classic_group(world, b"", protocol_type="connect")
    assert "consumer embedded protocol" in refused(world)
    world = World()
    classic_group(world, assignment(("orders", 0), user_data=b"mine"))
    assert "custom assignor" in refused(world)
    world = World()
    group = classic_group(world, b"", metadata=b"\0")
    assert "malformed" in refused(world)
    for policy, size_max in (("disabled", 9), ("downgrade", 9), ("upgrade", 0)):
        limits = ConsumerLimits(migration_policy=policy, size_max=size_max)
        with pytest.raises(KafkaError) as refusal:
            decide_upgrade(group, world.topics, limits)
        assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_that_names_more_than_is_read_at_once_is_not_upgraded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []

    def counted(message: Any, metadata: bytes, elements_max: int) -> Any:
        read.append(metadata)
        return decode_compatible(message, metadata, elements_max)

    monkeypatch.setattr(consumer_protocol, "decode_compatible", counted)
    monkeypatch.setattr(consumer_protocol, "GROUP_ELEMENTS_MAX", 2999)
    group = classic_group(world, b"", b"", b"", metadata=subscription(["orders"] * 1000))
    # Before anything is read: too much may be named to find that out by reading.
    assert "malformed" in refused(world)
    assert not read
    # What members say alike is read once.
    assert subscribed_topics(group) == frozenset(["orders"])
    assert len(read) == 1
    monkeypatch.setattr(consumer_protocol, "GROUP_ELEMENTS_MAX", 999)
    assert subscribed_topics(group) is None
    assert len(read) == 1
    monkeypatch.setattr(consumer_protocol, "GROUP_ELEMENTS_MAX", 3000)
    world.join("new", "orders")
    assert len(world.group.members) == 4


def test_a_member_may_not_name_a_million_topics(world: World) -> None:
    group = classic_group(world, b"", metadata=subscription([""] * 1_000_000))
    assert subscribed_topics(group) is None
    assert "malformed" in refused(world)
    world = World()
    classic_group(world, assignment(*[("orders", 0)] * 100_000))
    assert "malformed" in refused(world)


def test_a_classic_member_joins_syncs_and_rebalances_beside_a_consumer(world: World) -> None:
    world.join("new", "orders")
    joined = world.join_classic("old", "orders")
    assert (joined.generation_id, joined.leader, joined.protocol_name) == (3, "", "range")
    assert not must_join_again(world.group, world.member("old")), "it waits for others"
    told = world.heartbeat("new", 2)
    world.heartbeat("new", 2, owned=told.assignment)
    assert must_join_again(world.group, world.member("old")), "there is something to take"
    joined = world.join_classic("old", "orders")
    synced = world.sync("old", joined.generation_id)
    given = world.places(next(read_assignments([synced.assignment], world.topics)))
    assert given | world.assigned("new") == ORDERS
    assert given == world.assigned("old")
    world.check_replay()


def test_a_classic_member_gives_back_by_joining_without() -> None:
    world = World(may_downgrade=False)
    world.join("new", "orders")
    world.leave("new")
    joined = world.join_classic("old", "orders")
    world.sync("old", joined.generation_id)
    world.join("new", "orders")
    assert must_join_again(world.group, world.member("old"))
    world.join_classic("old", "orders", owned=sorted(ORDERS))
    assert world.member("old").state is MemberState.UNREVOKED_PARTITIONS
    kept = world.assigned("old")
    world.join_classic("old", "orders", owned=sorted(kept))
    world.heartbeat("new", world.member("new").epoch)
    assert world.assigned("new") == ORDERS - kept


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (
            {"protocols": (("other", subscription(["orders"])),)},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        ({"protocols": (("range", b"\0"),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_joins_that_do_not_fit_are_refused(
    world: World, fields: dict[str, Any], code: ErrorCode
) -> None:
    world.join("new", "orders")
    world.join_classic("old", "orders")
    with pytest.raises(KafkaError) as refusal:
        world.join_classic("other", "orders", **fields)
    assert refusal.value.code is code


def test_a_first_join_learns_its_id(world: World) -> None:
    world.join("new", "orders")
    answer = world.join_classic("", "orders", must_know_its_id=True)
    assert answer.error_code is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id not in world.group.members


def test_syncs_and_heartbeats_carry_the_members_epoch(world: World) -> None:
    world.join("new", "orders")
    generation_id = world.join_classic("old", "orders").generation_id
    for member_id, generation, code in (
        ("new", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        ("unknown", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        ("old", generation_id - 1, ErrorCode.ILLEGAL_GENERATION),
    ):
        with pytest.raises(KafkaError) as refusal:
            known_classic_member(world.group, member_id, None, generation)
        assert refusal.value.code is code
    for said, code in (
        ({"protocol_name": "other"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "other"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ):
        with pytest.raises(KafkaError) as refusal:
            world.sync("old", generation_id, **said)
        assert refusal.value.code is code
    world.topics.grow("orders", 6)
    world.heartbeat("new", 2)
    with pytest.raises(KafkaError) as refusal:
        world.sync("old", generation_id)
    assert refusal.value.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_sync_names_any_protocol_of_its_member(world: World) -> None:
    # What a classic group has chosen: the group is upgraded between a member's join and its sync.
    group = classic_group(
        world,
        assignment(("orders", 0)),
        protocols=tuple((name, subscription(["orders"])) for name in ("range", "roundrobin")),
    )
    (member_id,) = group.members
    world.join("new", "orders")
    for name in ("range", "roundrobin"):
        with pytest.raises(KafkaError) as refusal:
            world.sync(member_id, 1, protocol_name=name)
        assert refusal.value.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_classic_member_takes_a_static_members_place(world: World) -> None:
    world.join("new", "orders")
    world.join("static", "orders", instance_id="one")
    answer = world.join_classic("", "orders", group_instance_id="one")
    assert world.group.static_members == {"one": answer.member_id}
    assert known_leaving_member(world.group, LeavingMember("", "one")).member_id == answer.member_id
    with pytest.raises(KafkaError) as refusal:
        known_leaving_member(world.group, LeavingMember("static", "one"))
    assert refusal.value.code is ErrorCode.FENCED_INSTANCE_ID


def test_the_last_consumer_leaves_a_classic_group_behind(world: World) -> None:
    world.join("new", "orders")
    world.join_classic("old", "orders")
    world.join_classic("other", "orders")
    epoch = world.group.epoch
    world.leave("new")
    classic = world.shard.groups[GROUP]
    assert sorted(classic.members) == ["old", "other"]
    assert (classic.generation_id, classic.protocol_name) == (epoch, "range")
    assert GROUP not in world.shard.consumer_groups
    world.check_replay()
    again = world.join("new", "orders")
    assert again.member_epoch > epoch, "epochs only grow, there and back"


def test_a_member_that_has_not_given_back_keeps_it_down_and_up_again() -> None:
    world = World()
    classic_group(world, assignment(*sorted(ORDERS)))
    (member_id,) = world.shard.groups[GROUP].members
    world.join("new", "orders")
    world.leave("new")
    assert GROUP in world.shard.groups
    world.join("new", "orders")
    # It was never heard of since: it reads everything.
    assert world.assigned(member_id) == ORDERS
    assert world.assigned("new") == set()


def test_a_group_stays_where_a_downgrade_is_not_due(world: World) -> None:
    world.join("new", "orders")
    world.join_classic("old", "orders")
    due = ConsumerLimits(classic_size_max=10)
    assert is_downgrade_due(world.group, ["new"], due)
    for policy in ("upgrade", "disabled"):
        assert not is_downgrade_due(world.group, ["new"], replace(due, migration_policy=policy))
    assert not is_downgrade_due(world.group, ["new"], replace(due, classic_size_max=0))
    assert not is_downgrade_due(world.group, ["old"], due)
    assert not is_downgrade_due(world.group, ["old", "new"], due)
    assert not is_downgrade_due(world.group, [], due)


def test_classic_members_alone_notice_topics_that_grow() -> None:
    world = World(may_downgrade=False)
    world.join("new", "orders")
    joined = world.join_classic("old", "orders")
    world.leave("new")
    joined = world.join_classic("old", "orders")
    assert not must_join_again(world.group, world.member("old"))
    world.topics.grow("orders", 6)
    world.notice_topics()
    assert must_join_again(world.group, world.member("old"))
    assert world.join_classic("old", "orders").generation_id == joined.generation_id + 1
    assert len(world.assigned("old")) == 6
