"""What members of groups have said is counted, and the account is empty when they are gone."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from coordinator.groups.classic.group import ClassicGroup, GroupLimits, Member
from coordinator.groups.classic.rebalance import refuse_syncs
from coordinator.groups.classic.records import apply, stable_value
from coordinator.groups.classic.requests import Outcome
from coordinator.groups.member_room import (
    MEMBER_BYTES,
    SMALL_BYTES,
    TEXT_BYTES,
    MemberAccount,
    has_room,
    protocols_bytes,
    texts_bytes,
)
from tests.coordinator.groups.consumer_world import FakeTopics, World


def counted(world: World) -> int:
    """What a count of everything gives."""
    group = world.shard.consumer_groups.get("group")
    if group is None:
        return 0
    matched = [name for regex in group.regexes.values() for name in regex.topics]
    said = sum(member.size_bytes for member in group.members.values())
    return said + sum(len(name) + TEXT_BYTES for name in matched)


@pytest.mark.parametrize("first", ["x", "\u00e9", "\u20ac", "\U0001f600"])
def test_a_text_counts_with_the_width_that_its_characters_have_in_memory(first: str) -> None:
    text = first + "x" * 1000
    taken_bytes = sys.getsizeof(text) - sys.getsizeof(first)
    assert taken_bytes <= texts_bytes([text]) <= 4 * len(text) + TEXT_BYTES
    assert protocols_bytes([(text, b"1234")]) == texts_bytes([text]) + 4


def test_joins_subscriptions_patterns_and_leaves_are_counted() -> None:
    world = World(FakeTopics(**{f"t{number}": 1 for number in range(50)}))
    account = world.shard.members
    assert account.size_bytes == 0
    world.join("a", "t1", "t2")
    one = account.size_bytes
    assert one == counted(world) >= MEMBER_BYTES + 2 * TEXT_BYTES
    world.join("b", topic_regex="t.*")
    assert account.size_bytes == counted(world) >= one + 50 * TEXT_BYTES
    world.heartbeat("a", world.member("a").epoch, topic_names=frozenset({"t1"}))
    assert account.size_bytes == counted(world)
    world.heartbeat("b", world.member("b").epoch, topic_regex="t1.*")
    assert account.size_bytes == counted(world)
    world.leave("b")
    world.leave("a")
    assert account.size_bytes == counted(world) == 0


def classic(member_id: str, size_bytes: int) -> Member:
    return Member(
        member_id=member_id,
        group_instance_id=None,
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        protocols=(("range", bytes(size_bytes)),),
    )


def test_members_of_classic_groups_count_where_their_group_does() -> None:
    account = MemberAccount()
    group = ClassicGroup("group", GroupLimits())
    group.add(classic("a", 100), "consumer")
    group.account_in(account)
    assert account.size_bytes == group.member_bytes > 100 + MEMBER_BYTES
    group.add(classic("b", 1000), "consumer")
    group.update(group.members["a"], (("range", bytes(5000)),), 1, 1)
    assert account.size_bytes == group.member_bytes > 6000 + 2 * MEMBER_BYTES
    group.remove("a")
    group.rest([classic("c", 10)], "consumer", "c", 0)
    assert 0 < account.size_bytes < 2 * MEMBER_BYTES
    group.account_in(MemberAccount())
    assert account.size_bytes == 0


def test_the_names_of_a_classic_member_count() -> None:
    group = ClassicGroup("group", GroupLimits())
    group.add(
        replace(classic("a" * 1000, 0), client_id="c" * 2000, group_instance_id="i" * 3000),
        "consumer",
    )
    assert group.member_bytes > 6000
    group.rename(group.members["a" * 1000], "b", "c" * 20_000, "h")
    assert group.member_bytes > 23_000
    group.rename(group.members["b"], "d", "c", "h")
    assert 3000 < group.member_bytes < 5000
    group.remove("d")
    assert group.member_bytes == 0


def test_what_a_leader_assigns_counts() -> None:
    group = ClassicGroup("group", GroupLimits())
    group.add(classic("a", 0), "consumer")
    without = group.member_bytes
    apply(group, stable_value(group, {"a": bytes(5000)}, 0))
    assert group.member_bytes == without + 5000
    refuse_syncs(group, 0, Outcome())
    assert group.member_bytes == without
    group.remove("a")
    assert group.member_bytes == 0


def test_ids_that_were_given_out_count_until_they_are_used_or_dropped() -> None:
    account = MemberAccount()
    group = ClassicGroup("group", GroupLimits(pending_members_max=2))
    group.account_in(account)
    for member_id in ("a", "b", "c"):
        group.add_pending(member_id * 1000, 10)
    assert account.size_bytes == group.member_bytes > 2000
    assert group.bytes_of("a" * 1000) == 0
    assert group.bytes_of("b" * 1000) > 1000
    group.add(classic("b" * 1000, 0), "consumer")
    group.rest([*group.members.values()], "consumer", None, 0)
    assert account.size_bytes == group.bytes_of("b" * 1000) + group.bytes_of("c" * 1000)
    group.remove("b" * 1000)
    assert account.size_bytes == group.bytes_of("c" * 1000) > 1000
    assert group.drop_pending("c" * 1000)
    assert not group.drop_pending("c" * 1000)
    assert account.size_bytes == 0


@pytest.mark.parametrize(
    ("taken", "more", "bytes_max", "expected"),
    [
        (0, 100, 100, True),
        (1, 100, 100, False),
        (10**9, 100, -1, True),
        (10**9, 0, 100, True),
        (700_000, SMALL_BYTES + 1, 1_000_000, True),
        # The last quarter is for those who say little.
        (745_000, SMALL_BYTES + 1, 1_000_000, False),
        (745_000, SMALL_BYTES, 1_000_000, True),
    ],
)
def test_members_who_say_little_have_the_last_quarter(
    taken: int, more: int, bytes_max: int, expected: bool
) -> None:
    assert has_room(taken, more, bytes_max) is expected
