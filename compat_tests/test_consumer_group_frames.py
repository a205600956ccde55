"""Consumer groups as frames: what a heartbeat may say, who may speak, who may commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest

from compat_tests.admin import await_obeyed
from compat_tests.brokers import Broker
from compat_tests.config_frames import GROUP, SET, alter, synonyms
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.consumer_group_frames import ConsumerMember
from compat_tests.group_frames import Code, Member, assignment, subscription
from compat_tests.waiting import eventually

Enter = Callable[..., ConsumerMember]


@pytest.fixture
def orders(broker: Broker, topic: MakeTopic) -> str:
    created = topic("orders", 4)
    # The coordinator of the group knows it too.
    await_obeyed(broker)
    return created


@pytest.fixture
def group(name: MakeName) -> str:
    return name("group")


@pytest.fixture
def connect(broker: Broker, group: str) -> Iterator[Enter]:
    """Make connections that may become members of the group."""
    with ExitStack() as stack:

        def make(instance: str | None = None) -> ConsumerMember:
            return stack.enter_context(ConsumerMember(broker.bootstrap, group, instance))

        yield make


def all_of(member: ConsumerMember) -> set[int]:
    return {partition for each in member.assigned.values() for partition in each}


def share(first: ConsumerMember, second: ConsumerMember, topic: str) -> None:
    """Make both members, reconciled, with two partitions each."""
    first.enter_with(topic)
    second.enter_with(topic)
    first.beat()
    first.beat(owned=first.assigned)
    second.beat()
    assert len(all_of(first)) == len(all_of(second)) == 2


def test_features_name_the_group_protocol(broker: Broker, connect: Enter) -> None:
    assert connect().serves(68)
    assert connect().serves(69)


def test_a_partition_is_given_when_its_owner_has_given_it_back(connect: Enter, orders: str) -> None:
    first, second = connect(), connect()
    joined = first.enter_with(orders)
    assert (joined.error_code, joined.member_epoch) == (Code.NONE, 2)
    assert all_of(first) == {0, 1, 2, 3}
    assert second.enter_with(orders).member_epoch == 3
    assert all_of(second) == set()
    told = first.beat()
    assert told.member_epoch == 2
    assert len(all_of(first)) == 2
    assert second.beat().assignment is None
    assert first.beat(owned=first.assigned).member_epoch == 3
    second.beat()
    assert all_of(second) == {0, 1, 2, 3} - all_of(first)
    described = first.described()
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == (
        "Stable",
        3,
        3,
    )
    assert described.assignor_name == "uniform"
    assert {each.member_id for each in described.members} == {first.member_id, second.member_id}
    assert [each.member_type for each in described.members] == [1, 1]
    assert first.beat(-1).member_epoch == -1
    assert second.beat().member_epoch == 4
    assert all_of(second) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("epoch", "said", "code"),
    [
        (0, {"group_id": ""}, Code.INVALID_REQUEST),
        (0, {"member_id": ""}, Code.INVALID_REQUEST),
        (0, {"instance_id": ""}, Code.INVALID_REQUEST),
        (0, {"rack_id": ""}, Code.INVALID_REQUEST),
        (0, {"rebalance_timeout_ms": -1}, Code.INVALID_REQUEST),
        (0, {"owned": None}, Code.INVALID_REQUEST),
        (0, {"owned": {UUID(int=1): (0,)}}, Code.INVALID_REQUEST),
        (0, {"subscribed_topic_names": None}, Code.INVALID_REQUEST),
        (0, {"server_assignor": "mine"}, Code.UNSUPPORTED_ASSIGNOR),
        (-2, {}, Code.INVALID_REQUEST),
        (-3, {}, Code.INVALID_REQUEST),
        (0, {"subscribed_topic_regex": "("}, Code.INVALID_REGULAR_EXPRESSION),
        (1, {}, Code.GROUP_ID_NOT_FOUND),
        (-1, {}, Code.GROUP_ID_NOT_FOUND),
    ],
)
def test_what_no_member_may_say_is_refused(
    connect: Enter, orders: str, epoch: int, said: dict[str, Any], code: Code
) -> None:
    full = {"subscribed_topic_names": (orders,), "rebalance_timeout_ms": 1000, "owned": {}}
    member = connect()
    assert member.code(epoch, **{**(full if epoch == 0 else {}), **said}) is code


def test_whether_a_member_may_speak_comes_before_its_pattern(connect: Enter, orders: str) -> None:
    member, stranger = connect(), connect()
    member.instance = "one"
    wrong: dict[str, Any] = {"subscribed_topic_regex": "("}
    assert member.code(1, **wrong) is Code.GROUP_ID_NOT_FOUND
    member.enter_with(orders)
    assert member.code(9, **wrong) is Code.FENCED_MEMBER_EPOCH
    assert stranger.code(1, **wrong) is Code.UNKNOWN_MEMBER_ID
    stranger.instance = "one"
    assert stranger.enter_with(orders, **wrong).error_code == Code.UNRELEASED_INSTANCE_ID
    assert member.code(**wrong) is Code.INVALID_REGULAR_EXPRESSION


def test_version_0_members_are_given_an_id(connect: Enter, orders: str) -> None:
    member = connect()
    answer = member.enter_with(orders, version=0, member_id="")
    assert answer.error_code == Code.NONE
    assert answer.member_id
    assert member.code(version=0) is Code.NONE


def test_members_speak_with_their_epoch(connect: Enter, orders: str) -> None:
    first, second = connect(), connect()
    share(first, second, orders)
    assert first.code(4) is Code.FENCED_MEMBER_EPOCH
    assert first.code(2) is Code.FENCED_MEMBER_EPOCH, "it says not what it owns"
    assert first.code(2, owned=first.assigned) is Code.NONE
    assert first.code(2, owned=second.assigned) is Code.FENCED_MEMBER_EPOCH
    assert connect().code(3) is Code.UNKNOWN_MEMBER_ID
    assert first.code(0, subscribed_topic_names=(orders,), rebalance_timeout_ms=1, owned={}) is (
        Code.NONE
    )


def test_static_members_leave_for_a_while_and_are_replaced(connect: Enter, orders: str) -> None:
    old, new = connect("one"), connect("one")
    old.enter_with(orders)
    assert new.enter_with(orders).error_code == Code.UNRELEASED_INSTANCE_ID
    assert old.beat(-2).member_epoch == -2
    assert new.enter_with(orders).member_epoch == 2
    assert all_of(new) == {0, 1, 2, 3}
    assert old.code(2) is Code.FENCED_INSTANCE_ID
    assert old.code(-1) is Code.FENCED_INSTANCE_ID
    assert old.code(-1, instance_id="two") is Code.UNKNOWN_MEMBER_ID
    assert new.code(-1) is Code.NONE
    assert new.described().group_state == "Empty"


def test_a_member_that_joins_again_with_an_instance_id_keeps_its_part(
    connect: Enter, broker: Broker, orders: str
) -> None:
    member, newcomer = connect(), connect()
    member.enter_with(orders)
    newcomer.enter_with(orders)
    member.instance = "one"
    assert member.enter_with(orders).member_epoch == 3
    member.beat()
    # Kafka gives it the target of the member that had the instance id: none had it.
    assert len(all_of(member)) == (0 if broker.kind == "kafka" else 2)


def test_commits_carry_a_member_epoch(connect: Enter, orders: str) -> None:
    first, second = connect(), connect()
    assert first.commit(orders, 1) is Code.NONE, "no group yet, and no member id"
    share(first, second, orders)
    (partitions,) = first.assigned.values()
    mine, others = partitions[0], next(p for p in range(4) if p not in partitions)
    first.generation_id = 3
    assert first.commit(orders, 2, partition=mine) is Code.NONE
    assert first.commit(orders, 2, 8, partition=mine) is Code.UNSUPPORTED_VERSION
    first.generation_id = 4
    assert first.commit(orders, 3, partition=mine) is Code.STALE_MEMBER_EPOCH
    first.generation_id = 2
    assert first.commit(orders, 4, partition=mine) is Code.NONE, "it has had it since then"
    assert first.commit(orders, 4, partition=others) is Code.STALE_MEMBER_EPOCH
    first.generation_id = -1
    assert first.commit(orders, 5, partition=mine) is Code.STALE_MEMBER_EPOCH
    first.member_id = "unknown"
    assert first.commit(orders, 5, partition=mine) is Code.UNKNOWN_MEMBER_ID
    assert second.delete_offset(orders, mine) is Code.GROUP_SUBSCRIBED_TO_TOPIC
    assert second.delete_group() is Code.NON_EMPTY_GROUP


def test_groups_of_the_other_kind_have_the_codes_of_their_apis(
    connect: Enter, broker: Broker, orders: str, name: MakeName
) -> None:
    member = connect()
    member.enter_with(orders)
    described = member.describe()
    assert (described.error_code, described.group_state) == (Code.GROUP_ID_NOT_FOUND, "Dead")
    assert member.described(name("other")).error_code == Code.GROUP_ID_NOT_FOUND
    assert member.described("").error_code == Code.INVALID_GROUP_ID
    with Member(broker.bootstrap, member.group) as classic:
        answer = classic.join(protocols=(("range", subscription(orders)),), protocol_type="connect")
        assert answer.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        classic.member_id, classic.generation_id = member.member_id, 2
        assert classic.heartbeat() is Code.UNKNOWN_MEMBER_ID, "it does not speak the classic one"
    with Member(broker.bootstrap, name("classic")) as classic:
        classic.lead()
        other = ConsumerMember(broker.bootstrap, classic.group)
        with other:
            assert other.code(1) is Code.GROUP_ID_NOT_FOUND
            assert other.described().error_code == Code.GROUP_ID_NOT_FOUND


def test_a_classic_join_that_a_consumer_group_refuses_is_answered_without_a_member_id(
    connect: Enter, broker: Broker, orders: str
) -> None:
    connect().enter_with(orders)
    range_of = (("range", subscription(orders)),)
    for instance, kind, code in (
        (None, "connect", Code.INCONSISTENT_GROUP_PROTOCOL),
        ("one", "consumer", Code.UNKNOWN_MEMBER_ID),
    ):
        with Member(broker.bootstrap, connect().group, instance) as classic:
            answer = classic.join(member_id="mine", protocols=range_of, protocol_type=kind)
            assert (answer.error_code, answer.member_id) == (code, "")
    # A session that is too long is refused before the group is looked at.
    with Member(broker.bootstrap, connect().group, None) as classic:
        answer = classic.join(member_id="mine", protocols=range_of, session_timeout_ms=10**9)
        assert (answer.error_code, answer.member_id) == (Code.INVALID_SESSION_TIMEOUT, "mine")


def test_of_assignors_with_as_many_members_the_default_is_preferred(
    connect: Enter, orders: str
) -> None:
    first, second = connect(), connect()
    first.enter_with(orders, server_assignor="range")
    assert first.described().assignor_name == "range"
    second.enter_with(orders, server_assignor="uniform")
    assert first.described().assignor_name == "uniform"


def test_a_pattern_that_matches_nothing_does_not_raise_the_epoch(connect: Enter) -> None:
    member = connect()
    joined = member.beat(
        0, subscribed_topic_regex="no-such-topic.*", rebalance_timeout_ms=60_000, owned={}
    )
    assert (joined.error_code, joined.member_epoch) == (Code.NONE, 1)
    assert member.beat().member_epoch == 1


def test_the_topics_of_a_pattern_come_after_those_that_are_named(
    connect: Enter, topic: MakeTopic, orders: str
) -> None:
    matched = topic("matched", 2)
    member = connect()
    joined = member.enter_with(orders, subscribed_topic_regex=f"{matched}.*")
    assert (joined.error_code, joined.member_epoch) == (Code.NONE, 2)
    assert [each.partitions for each in joined.assignment.topic_partitions] == [(0, 1, 2, 3)]
    eventually(lambda: member.beat().member_epoch == 3)
    assert sorted(member.assigned.values()) == [(0, 1), (0, 1, 2, 3)]
    member.beat(owned=member.assigned)
    changed = member.beat(subscribed_topic_regex=f"{matched}|none", owned=member.assigned)
    assert [each.partitions for each in changed.assignment.topic_partitions] == [(0, 1, 2, 3)]


def test_a_static_member_that_comes_back_as_a_classic_one_goes_on_with_its_assignment(
    connect: Enter, broker: Broker, orders: str
) -> None:
    member = connect("one")
    member.enter_with(orders)
    member.beat(owned=member.assigned)
    assert member.beat(-2).member_epoch == -2
    with Member(broker.bootstrap, member.group, "one") as classic:
        answer = classic.join(protocols=(("range", subscription(orders)),))
        assert (answer.error_code, answer.generation_id) == (Code.NONE, 2)
        assert classic.state() == "Stable"
        assert classic.heartbeat() is Code.NONE
        assert classic.sync().assignment == assignment(orders, 0, 1, 2, 3)
        assert classic.state() == "Stable"


def test_the_assignment_interval_does_not_hold_back_the_first_one_after_a_conversion(
    connect: Enter, broker: Broker, orders: str
) -> None:
    member = connect()
    interval = "consumer.assignment.interval.ms"
    assert alter(broker, member.group, (interval, SET, "15000"), resource_type=GROUP) == 0
    # Kafka shows it after its answer, and its coordinator obeys later.
    eventually(lambda: synonyms(broker, GROUP, member.group, interval)[0][1] == "15000")
    await_obeyed(broker)
    with Member(broker.bootstrap, member.group) as classic:
        classic.enter(protocols=(("range", subscription(orders)),))
        classic.sync(assignments={classic.member_id: assignment(orders, 0, 1, 2, 3)})
        assert member.enter_with(orders).member_epoch == 2
        assert member.described().assignment_epoch == 2
        # The next one is held back.
        assert connect().enter_with(orders).member_epoch == 2
        assert member.described().assignment_epoch == 2
