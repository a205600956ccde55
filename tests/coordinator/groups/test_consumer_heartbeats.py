"""Consumer groups: joins, reconciliation, epochs and what a heartbeat is told."""

from __future__ import annotations

from uuid import UUID

import pytest

from coordinator.groups.consumer.assignment import LARGE_INTERVAL_MS, LARGE_MEMBERS
from coordinator.groups.consumer.group import ConsumerGroupState
from coordinator.groups.consumer.member import MemberState
from coordinator.groups.consumer.requests import (
    TOPIC_NAMES_MAX,
    HeartbeatRequest,
    check_heartbeat,
)
from tests.coordinator.groups.consumer_world import FakeTopics, World
from wire.error_code import ErrorCode
from wire.errors import KafkaError

ALL = {("orders", n) for n in range(4)}


@pytest.fixture
def world() -> World:
    return World()


def two_members(world: World) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Let `a` and `b` share orders, and reconcile; return what each has."""
    world.join("a", "orders")
    world.join("b", "orders")
    asked = world.heartbeat("a", 2)
    assert asked.assignment is not None
    kept = world.places(asked.assignment)
    world.heartbeat("a", 2, owned=asked.assignment)
    world.heartbeat("b", 3)
    return kept, world.assigned("b")


def test_the_first_member_gets_everything_at_once(world: World) -> None:
    answer = world.join("a", "orders")
    assert (answer.member_id, answer.member_epoch) == ("a", 2)
    assert answer.assignment is not None
    assert world.places(answer.assignment) == ALL
    assert world.group.state is ConsumerGroupState.STABLE
    world.check_replay()


def test_a_heartbeat_that_says_nothing_new_writes_and_tells_nothing(world: World) -> None:
    world.join("a", "orders")
    answer = world.heartbeat("a", 2)
    assert world.written == []
    assert (answer.member_epoch, answer.assignment) == (2, None)


def test_a_partition_goes_to_its_new_owner_when_the_old_one_has_released_it(world: World) -> None:
    world.join("a", "orders")
    joined = world.join("b", "orders")
    assert joined.assignment == {}
    assert world.member("b").state is MemberState.UNRELEASED_PARTITIONS
    asked = world.heartbeat("a", 2)
    assert asked.member_epoch == 2, "it stays in its epoch until it has given back"
    assert world.member("a").state is MemberState.UNREVOKED_PARTITIONS
    assert world.heartbeat("b", 3).assignment is None, "nothing is free yet"
    assert world.heartbeat("a", 2).assignment is None, "and it has not said that it gave back"
    given_back = world.heartbeat("a", 2, owned=asked.assignment)
    assert given_back.member_epoch == 3
    told = world.heartbeat("b", 3)
    assert told.assignment is not None
    assert world.places(told.assignment) == ALL - world.assigned("a")
    assert world.group.state is ConsumerGroupState.STABLE
    world.check_replay()


def test_members_that_leave_free_their_partitions_at_once(world: World) -> None:
    two_members(world)
    world.leave("b")
    assert world.group.state is ConsumerGroupState.ASSIGNING
    told = world.heartbeat("a", 3)
    assert told.member_epoch == 4
    assert world.assigned("a") == ALL


def test_the_last_member_leaves_an_empty_group_behind(world: World) -> None:
    world.join("a", "orders")
    world.leave("a")
    assert world.group.state is ConsumerGroupState.EMPTY
    assert (world.group.epoch, world.group.metadata_hash) == (3, 0)
    world.check_replay()
    assert world.join("b", "orders").member_epoch == 4, "epochs only grow"


def test_a_lost_answer_is_given_again(world: World) -> None:
    world.join("a", "orders")
    lost = world.join("a", "orders")
    assert (lost.member_epoch, world.written) == (2, [])
    world.join("b", "orders")
    asked = world.heartbeat("a", 2)
    world.heartbeat("a", 2, owned=asked.assignment)
    again = world.heartbeat("a", 2, owned=asked.assignment, topic_names=frozenset({"orders"}))
    assert again.member_epoch == 3


@pytest.mark.parametrize("epoch", [2, 9])
def test_another_epoch_than_the_members_is_fenced(world: World, epoch: int) -> None:
    kept, _ = two_members(world)
    world.topics.grow("orders", 6)
    world.heartbeat("a", 3)
    assert world.member("a").epoch == 4
    with pytest.raises(KafkaError) as refused:
        world.heartbeat("a", epoch, owned=world.owned(*kept))
    assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_epoch_before_is_fenced_for_a_topic_that_was_not_given(world: World) -> None:
    world.join("a", "orders")
    world.join("b", "orders")
    world.heartbeat("a", 2)
    world.heartbeat("a", 2, owned=world.owned(*world.assigned("a")))
    assert world.member("a").previous_epoch == 2
    with pytest.raises(KafkaError) as refused:
        world.heartbeat("a", 2, owned={UUID(int=9): frozenset()})
    assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_epoch_before_is_fenced_for_who_owns_what_it_was_not_given(world: World) -> None:
    _, others = two_members(world)
    with pytest.raises(KafkaError) as refused:
        world.heartbeat("a", 2, owned=world.owned(*others))
    assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH


def test_only_a_join_makes_a_member(world: World) -> None:
    world.join("a", "orders")
    with pytest.raises(KafkaError) as refused:
        world.heartbeat("b", 2)
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_its_members_only() -> None:
    world = World(size_max=1)
    world.join("a", "orders")
    world.heartbeat("a", 2)
    with pytest.raises(KafkaError) as refused:
        world.join("b", "orders")
    assert refused.value.code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_member_that_subscribes_to_other_topics_gives_the_old_ones_back_first(
    world: World,
) -> None:
    world.join("a", "orders")
    answer = world.heartbeat("a", 2, topic_names=frozenset({"audit"}))
    assert answer.assignment is not None
    assert world.places(answer.assignment) == set()
    assert world.member("a").state is MemberState.UNREVOKED_PARTITIONS
    answer = world.heartbeat("a", 2, owned={})
    assert answer.member_epoch == 3
    assert world.assigned("a") == {("audit", 0), ("audit", 1)}
    world.check_replay()


def test_topics_that_grow_come_and_go_raise_the_epoch(world: World) -> None:
    world.join("a", "orders", "later")
    world.topics.grow("orders", 5)
    assert world.heartbeat("a", 2).member_epoch == 3
    assert ("orders", 4) in world.assigned("a")
    world.topics.create("later", 1)
    assert world.heartbeat("a", 3).member_epoch == 4
    assert ("later", 0) in world.assigned("a")
    world.topics.delete("orders")
    world.heartbeat("a", 4)
    answer = world.heartbeat("a", 4, owned=world.owned(("later", 0)))
    assert answer.member_epoch == 5
    assert world.assigned("a") == {("later", 0)}


def test_a_topic_nobody_reads_changes_nothing(world: World) -> None:
    world.join("a", "orders")
    world.topics.create("other", 3)
    assert world.heartbeat("a", 2).member_epoch == 2
    assert world.written == []


def test_a_regular_expression_reads_what_it_matches(world: World) -> None:
    joined = world.join("a", "audit", topic_regex="ord.*")
    audit = {("audit", 0), ("audit", 1)}
    assert world.assigned("a") == audit, "the topics of a pattern come second"
    assert joined.heartbeat_interval_ms < world.limits.heartbeat_interval_ms
    answer = world.heartbeat("a", joined.member_epoch, owned=world.owned(*audit))
    assert answer.member_epoch == joined.member_epoch + 1
    assert answer.heartbeat_interval_ms == world.limits.heartbeat_interval_ms
    assert world.assigned("a") == audit | ALL
    world.topics.create("ordinals", 1)
    world.refresh_regexes()
    assert world.heartbeat("a", 3).member_epoch == 4
    assert world.assigned("a") == audit | ALL | {("ordinals", 0)}
    world.heartbeat("a", 4, topic_regex="")
    world.heartbeat("a", 4, owned=world.owned(*audit))
    assert world.assigned("a") == audit
    assert world.group.regexes == {}, "no member subscribes by a pattern any more"
    world.check_replay()


def test_a_second_member_with_the_same_pattern_is_given_its_topics_at_once(world: World) -> None:
    world.join("a", topic_regex="ord.*")
    world.join("b", topic_regex="ord.*")
    assert world.assigned("b") == {("orders", 2), ("orders", 3)}
    assert world.heartbeat("a", 1).member_epoch == 3


def test_another_pattern_takes_its_topics_away_until_it_is_matched(world: World) -> None:
    world.join("a", topic_regex="ord.*")
    world.heartbeat("a", 1)
    world.heartbeat("a", 2, topic_regex=".*s")
    assert world.assigned("a") == set()
    world.heartbeat("a", 2, owned={})
    assert world.assigned("a") == ALL
    world.check_replay()


def test_a_pattern_that_no_record_resolves_is_matched_with_the_next_heartbeat(
    world: World,
) -> None:
    world.join("a", topic_regex="ord.*")
    regex = world.log.pop(next(i for i, (key, _) in enumerate(world.log) if b"ord.*" in key))
    assert regex[1] is not None
    world.shard = world.replayed()
    assert world.group.regexes == {}
    assert world.soft.begin_matching(world.group, world.topics.version, 0, world.now_ms)
    world.refresh_regexes()
    world.heartbeat("a", 1)
    assert world.assigned("a") == ALL


def test_patterns_that_take_long_to_match_rest_for_longer(world: World) -> None:
    world.join("a", topic_regex="ord.*")
    soft, rights = world.soft, 0

    def asks_again_at(now_ms: int) -> bool:
        return soft.begin_matching(world.group, world.topics.version, rights, now_ms)

    for took_ms, rest_ms in ((0, 1_000), (30, 1_000), (2_000, 8_000), (60_000, 10_000)):
        rights += 1
        world.now_ms += 10_000
        assert asks_again_at(world.now_ms)
        ended_ms = world.now_ms = world.now_ms + took_ms
        soft.end_matching(ended_ms)
        assert not asks_again_at(ended_ms + rest_ms)
        # Rights change during the rest, and are looked at after it.
        rights += 1
        assert not asks_again_at(ended_ms + rest_ms - 1)
        assert asks_again_at(ended_ms + rest_ms)
        soft.end_matching(ended_ms + rest_ms)


def test_a_new_topic_is_shared_between_who_names_it_and_who_matches_it(world: World) -> None:
    world.join("a", "fresh")
    world.join("b", topic_regex="fr.*")
    world.topics.create("fresh", 4)
    world.heartbeat("a", 2)
    world.refresh_regexes()
    for _ in range(3):
        for each in ("a", "b"):
            member = world.member(each)
            world.heartbeat(each, member.epoch, owned=member.assigned)
    assert len(world.assigned("a")) == len(world.assigned("b")) == 2
    world.check_replay()


def test_a_full_request_is_told_the_assignment_again(world: World) -> None:
    joined = world.join("a", "orders")
    full = world.heartbeat(
        "a",
        2,
        topic_names=frozenset({"orders"}),
        rebalance_timeout_ms=60_000,
        owned=world.owned(*ALL),
    )
    assert full.assignment == joined.assignment


def test_an_assignment_whose_answer_was_lost_is_told_again_until_it_is_owned(world: World) -> None:
    lost = world.join("a", "orders")
    patience_ms = 3 * world.limits.heartbeat_interval_ms
    world.now_ms += patience_ms - 1
    assert world.heartbeat("a", 2).assignment is None
    world.now_ms += 1
    for _ in range(2):
        assert world.heartbeat("a", 2).assignment == lost.assignment
        assert world.heartbeat("a", 2).assignment is None, "not with every heartbeat"
        world.now_ms += patience_ms
    assert world.heartbeat("a", 2, owned=world.owned(("orders", 0))).assignment is not None
    world.now_ms += patience_ms
    assert world.heartbeat("a", 2, owned=lost.assignment).assignment is None
    world.now_ms += patience_ms
    assert world.heartbeat("a", 2).assignment is None
    assert world.written == []


def test_what_a_member_had_to_be_told_goes_with_it(world: World) -> None:
    world.join("a", "orders")
    world.leave("a")
    world.now_ms += 3 * world.limits.heartbeat_interval_ms
    joined = world.join("a", "audit")
    assert joined.assignment is not None
    assert world.heartbeat("a", joined.member_epoch).assignment is None


def test_the_assignment_waits_for_its_interval() -> None:
    world = World(FakeTopics(orders=4), assignment_interval_ms=1_000)
    world.join("a", "orders")
    world.join("b", "orders")
    assert world.group.state is ConsumerGroupState.ASSIGNING
    world.now_ms += 999
    assert world.heartbeat("a", 2).assignment is None
    world.now_ms += 1
    assert world.heartbeat("a", 2).assignment is not None


def test_the_next_member_of_an_empty_group_waits_for_no_interval() -> None:
    world = World(FakeTopics(orders=4), assignment_interval_ms=1_000)
    world.join("a", "orders")
    world.leave("a")
    assert world.group.assignment_epoch == world.group.epoch
    assert world.join("b", "orders").member_epoch == world.group.epoch
    assert len(world.assigned("b")) == 4


def test_an_assignment_of_a_clock_that_was_ahead_holds_no_later_one_up() -> None:
    """The time is in the log: the next run's clock may show an earlier one."""
    world = World(FakeTopics(orders=4), assignment_interval_ms=1_000)
    world.now_ms += 86_400_000
    world.join("a", "orders")
    world.now_ms -= 86_400_000
    world.join("b", "orders")
    assert world.group.assignment_epoch == world.group.epoch


def test_members_that_have_asked_for_an_assignor_that_is_not_here_get_the_default(
    world: World,
) -> None:
    """As a log of Apache Kafka's may hold them, which takes assignors of one's own."""
    answer = world.join("a", "orders", server_assignor="com.example.Own")
    assert answer.assignment is not None
    assert sum(map(len, answer.assignment.values())) == 4


def test_of_assignors_with_as_many_members_the_default_is_preferred(world: World) -> None:
    world.join("a", "orders", server_assignor="range")
    assert world.group.preferred_assignor("uniform") == "range"
    world.join("b", "orders", server_assignor="uniform")
    assert world.group.preferred_assignor("uniform") == "uniform"
    assert world.group.preferred_assignor("range") == "range"
    world.join("c", "orders", server_assignor="range")
    assert world.group.preferred_assignor("uniform") == "range"


def test_a_large_group_is_not_assigned_anew_for_each_member_that_joins() -> None:
    world = World(FakeTopics(orders=300))
    for number in range(LARGE_MEMBERS):
        assert world.join(f"m{number:03}", "orders").member_epoch == world.group.epoch
    for number in range(LARGE_MEMBERS, LARGE_MEMBERS + 5):
        assert world.join(f"m{number:03}", "orders").member_epoch == LARGE_MEMBERS + 1
    assert world.group.epoch == LARGE_MEMBERS + 6
    world.now_ms += LARGE_INTERVAL_MS
    assert world.heartbeat("m104", LARGE_MEMBERS + 1).member_epoch == world.group.epoch
    assert world.group.assignment_epoch == world.group.epoch
    assert len(world.group.targets) == LARGE_MEMBERS + 5


def test_topics_that_do_not_exist_are_not_looked_up_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    by_name = world.topics.by_name

    def counted(name: str) -> object:
        asked.append(name)
        return by_name(name)

    monkeypatch.setattr(world.topics, "by_name", counted)
    absent = [f"there-is-none-{number}" for number in range(2_000)]
    answer = world.join("a", "orders", *absent)
    assert answer.assignment is not None
    assert world.places(answer.assignment) == ALL
    assert "orders" in asked
    assert len(asked) < 100
    world.check_replay()


def test_a_member_names_so_many_topics_and_no_more() -> None:
    def naming(count: int) -> HeartbeatRequest:
        names = frozenset(map(str, range(count)))
        return HeartbeatRequest(group_id="g", member_id="a", member_epoch=7, topic_names=names)

    check_heartbeat(naming(TOPIC_NAMES_MAX), 1, ())
    with pytest.raises(KafkaError) as refused:
        check_heartbeat(naming(TOPIC_NAMES_MAX + 1), 1, ())
    assert refused.value.code is ErrorCode.INVALID_REQUEST
