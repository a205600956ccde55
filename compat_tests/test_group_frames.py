"""The classic group protocol at its corners, frame by frame, on magnetar as on Apache Kafka.

Client libraries ask only what they should; these tables ask everything else, in every version.
"""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.conftest import Enter
from compat_tests.group_frames import OTHER_TOPIC, RANGE, STICKY, Code, Member, Protocols, pair

# --- refusals

REFUSED_JOINS: list[tuple[dict[str, Any], Code]] = [
    ({"session_timeout_ms": 499}, Code.INVALID_SESSION_TIMEOUT),
    ({"session_timeout_ms": 1_800_001}, Code.INVALID_SESSION_TIMEOUT),
    ({"session_timeout_ms": -1}, Code.INVALID_SESSION_TIMEOUT),
    ({"protocols": ()}, Code.INCONSISTENT_GROUP_PROTOCOL),
    ({"protocol_type": ""}, Code.INCONSISTENT_GROUP_PROTOCOL),
    ({"member_id": "stranger"}, Code.UNKNOWN_MEMBER_ID),
]


@pytest.mark.parametrize("version", range(10))
@pytest.mark.parametrize(("fields", "code"), REFUSED_JOINS)
def test_a_join_is_refused(enter: Enter, fields: dict[str, Any], code: Code, version: int) -> None:
    member = enter()
    answer = member.join(version, **fields)
    assert Code(answer.error_code) is code
    assert answer.member_id == fields.get("member_id", "")
    assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])
    assert answer.protocol_name == (None if version >= 7 else "")


def test_nothing_is_known_of_a_group_without_a_name(enter: Enter) -> None:
    member = enter(None, "")
    assert Code(member.join().error_code) is Code.INVALID_GROUP_ID
    assert Code(member.sync().error_code) is Code.INVALID_GROUP_ID
    assert member.heartbeat() is Code.INVALID_GROUP_ID
    assert member.leave(("m", None)) == [Code.INVALID_GROUP_ID]
    assert member.delete_offset("orders") is Code.INVALID_GROUP_ID
    assert member.delete_group() is Code.GROUP_ID_NOT_FOUND
    assert Code(member.describe().error_code) is Code.GROUP_ID_NOT_FOUND


def test_a_group_that_does_not_exist_has_no_members(enter: Enter) -> None:
    member = enter()
    for version in range(5):
        assert member.heartbeat(version, member_id="m") is Code.UNKNOWN_MEMBER_ID
    for version in range(6):
        answer = member.sync(version, member_id="m")
        assert Code(answer.error_code) is Code.UNKNOWN_MEMBER_ID
        assert member.leave(("m", None), version=version) == [Code.UNKNOWN_MEMBER_ID]
    assert member.delete_group() is Code.GROUP_ID_NOT_FOUND
    assert member.delete_offset("orders") is Code.GROUP_ID_NOT_FOUND
    assert Code(member.describe(6).error_code) is Code.GROUP_ID_NOT_FOUND
    old = member.describe(5)
    assert (old.error_code, old.group_state) == (0, "Dead")
    assert member.listed() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"protocols": STICKY},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_a_newcomer_must_speak_what_the_group_speaks(enter: Enter, fields: dict[str, Any]) -> None:
    enter().lead()
    assert Code(enter().join(**fields).error_code) is Code.INCONSISTENT_GROUP_PROTOCOL


def test_a_stranger_to_a_group_with_offsets_alone_hears_first_of_its_protocols(
    enter: Enter, broker: Broker
) -> None:
    create_topic(broker.bootstrap, "committed")
    member = enter()

    def codes() -> list[Code]:
        said: list[dict[str, Any]] = [{"protocols": ()}, {"protocol_type": ""}, {}]
        return [Code(member.join(member_id="mine", **each).error_code) for each in said]

    assert codes() == 3 * [Code.UNKNOWN_MEMBER_ID]
    assert member.commit("committed", 1, version=5) is Code.NONE
    assert codes() == [*2 * [Code.INCONSISTENT_GROUP_PROTOCOL], Code.UNKNOWN_MEMBER_ID]


def test_a_member_must_go_on_speaking_what_the_group_speaks(enter: Enter) -> None:
    leader, follower = pair(enter)
    refused = follower.join(protocols=STICKY)
    assert Code(refused.error_code) is Code.INCONSISTENT_GROUP_PROTOCOL
    assert leader.heartbeat() is Code.NONE
    assert follower.heartbeat() is Code.NONE


def test_an_empty_group_may_take_up_another_protocol(enter: Enter) -> None:
    member = enter()
    member.lead()
    assert member.leave() == [Code.NONE]
    other = enter()
    connect = (("compatible", b"anything"),)
    other.member_id = other.join(protocol_type="connect", protocols=connect).member_id
    joined = other.join(protocol_type="connect", protocols=connect)
    assert (joined.generation_id, joined.protocol_type) == (3, "connect")
    assert joined.protocol_name == "compatible"


# --- every version, from the first join to the last leave

LIVES = [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 2, 2, 2), (4, 2, 2, 2), (5, 3, 3, 3)]
LIVES += [(6, 4, 4, 4), (7, 5, 4, 4), (8, 5, 4, 5), (9, 5, 4, 5)]


@pytest.mark.parametrize(("join", "sync", "heartbeat", "leave"), LIVES)
def test_a_life_in_every_version(
    enter: Enter, join: int, sync: int, heartbeat: int, leave: int
) -> None:
    member = enter()
    answer = member.join(join)
    if join >= 4:
        assert Code(answer.error_code) is Code.MEMBER_ID_REQUIRED
        assert answer.member_id
        answer = member.join(join)
    assert Code(answer.error_code) is Code.NONE
    assert answer.generation_id == 1
    assert answer.leader == answer.member_id == member.member_id
    assert answer.protocol_name == "range"
    (alone,) = answer.members
    assert (alone.member_id, alone.metadata) == (member.member_id, RANGE[0][1])
    if join >= 7:
        assert answer.protocol_type == "consumer"
    assert member.state() == "CompletingRebalance"
    synced = member.sync(sync, assignments={member.member_id: b"mine"})
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    if sync >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert member.heartbeat(heartbeat) is Code.NONE
    assert member.leave(version=leave) == [Code.NONE]
    assert member.state() == "Empty"


# --- who may say what, in each state


def test_words_of_strangers_and_of_the_past(enter: Enter) -> None:
    leader, follower = pair(enter)
    generation = leader.generation_id
    for version in range(5):
        assert follower.heartbeat(version, member_id="x") is Code.UNKNOWN_MEMBER_ID
        for other in (generation - 1, generation + 1, -1):
            found = follower.heartbeat(version, generation_id=other)
            assert found is Code.ILLEGAL_GENERATION
    for version in range(6):
        answer = follower.sync(version, member_id="x")
        assert Code(answer.error_code) is Code.UNKNOWN_MEMBER_ID
        answer = follower.sync(version, generation_id=generation - 1)
        assert Code(answer.error_code) is Code.ILLEGAL_GENERATION
        assert answer.assignment == b""
        assert follower.sync(version).assignment == b"S"


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol_type": "connect"},
        {"protocol_name": "sticky"},
        {"protocol_type": None},
        {"protocol_name": None},
        {"protocol_type": None, "protocol_name": None},
    ],
)
def test_a_sync_names_the_protocol_of_the_group(enter: Enter, fields: dict[str, Any]) -> None:
    member = enter()
    member.lead()
    assert Code(member.sync(5, **fields).error_code) is Code.INCONSISTENT_GROUP_PROTOCOL
    assert Code(member.sync(4, **fields).error_code) is Code.NONE


def test_while_a_rebalance_waits_for_members(enter: Enter) -> None:
    leader, follower = pair(enter)
    third = enter()
    third.join()
    third.send_join()
    leader.await_state("PreparingRebalance")
    assert leader.heartbeat() is Code.REBALANCE_IN_PROGRESS
    assert Code(leader.sync().error_code) is Code.REBALANCE_IN_PROGRESS
    assert leader.heartbeat(generation_id=1) is Code.ILLEGAL_GENERATION
    described = leader.describe()
    assert (described.protocol_data, len(described.members)) == ("", 3)
    assert leader.listed() == [("consumer", "PreparingRebalance", "classic")]
    leader.send_join()
    follower.send_join()
    assert {len(each.heard().members) for each in (leader, follower, third)} == {0, 3}


def test_while_the_leader_has_not_assigned(enter: Enter) -> None:
    leader, follower = pair(enter)
    follower.send_join(protocols=OTHER_TOPIC)
    leader.await_state("PreparingRebalance")
    leader.join()
    follower.heard()
    assert leader.heartbeat() is Code.NONE
    assert leader.state() == "CompletingRebalance"
    again = follower.join(protocols=OTHER_TOPIC)
    assert again.generation_id == leader.generation_id == 3
    follower.send_sync()
    assert leader.sync(assignments={follower.member_id: b"T"}).assignment == b""
    assert follower.heard().assignment == b"T"


def test_a_change_of_mind_before_the_assignment_begins_again(enter: Enter) -> None:
    leader, follower = pair(enter)
    leader.send_join(protocols=OTHER_TOPIC)
    follower.await_state("PreparingRebalance")
    follower.join()
    leader.heard()
    follower.send_sync()
    leader.send_join()
    assert Code(follower.heard().error_code) is Code.REBALANCE_IN_PROGRESS
    follower.send_join()
    assert {leader.heard().generation_id, follower.heard().generation_id} == {4}


def test_only_a_rejoin_that_says_something_new_rebalances(enter: Enter) -> None:
    leader, follower = pair(enter)
    same = follower.join()
    assert (same.generation_id, same.members) == (2, [])
    assert same.leader == leader.member_id
    assert follower.heartbeat() is Code.NONE
    leader.send_join()
    follower.await_state("PreparingRebalance")
    assert follower.join().generation_id == 3
    assert len(leader.heard().members) == 2


def test_a_member_of_whom_the_leader_says_nothing_is_assigned_nothing(enter: Enter) -> None:
    leader, follower = pair(enter)
    leader.send_join()
    follower.await_state("PreparingRebalance")
    follower.join()
    leader.heard()
    assert leader.sync(assignments={"stranger": b"X"}).assignment == b""
    assert follower.sync().assignment == b""
    assert follower.describe().members[0].member_assignment == b""


# --- timeouts


def test_a_silent_member_is_removed_when_its_session_ends(enter: Enter) -> None:
    leader = enter()
    leader.lead(session_timeout_ms=5_000)
    watcher = enter()
    watcher.await_state("Empty")
    assert leader.heartbeat() is Code.UNKNOWN_MEMBER_ID


def test_a_rebalance_ends_without_who_does_not_come(enter: Enter) -> None:
    leader, follower = pair(enter, rebalance_timeout_ms=6_000)
    leader.send_join(rebalance_timeout_ms=6_000)
    joined = leader.heard()
    assert [each.member_id for each in joined.members] == [leader.member_id]
    assert follower.heartbeat() is Code.UNKNOWN_MEMBER_ID


def test_who_never_asks_for_its_assignment_is_removed(enter: Enter) -> None:
    leader, follower = pair(enter, rebalance_timeout_ms=6_000)
    leader.send_join(rebalance_timeout_ms=6_000)
    follower.await_state("PreparingRebalance")
    follower.join(rebalance_timeout_ms=6_000)
    leader.heard()
    assert leader.sync(assignments={}).error_code == 0
    leader.await_state("PreparingRebalance")
    assert follower.heartbeat() is Code.UNKNOWN_MEMBER_ID
    assert leader.heartbeat() is Code.REBALANCE_IN_PROGRESS


def test_a_member_id_that_is_never_used_holds_up_nobody_for_long(enter: Enter) -> None:
    leader, ghost = enter(), enter()
    leader.lead()
    ghost.join(session_timeout_ms=500)
    assert len(leader.join().members) == 1
    assert Code(ghost.join().error_code) is Code.UNKNOWN_MEMBER_ID


# --- leaving


def test_many_leave_at_once_each_with_a_code(enter: Enter) -> None:
    leader, follower = pair(enter, "one", "two")
    third = enter("three")
    third.send_join()
    leader.await_state("PreparingRebalance")
    leader.send_join()
    follower.send_join()
    for each in (leader, follower, third):
        each.heard()
    leaving = [
        (leader.member_id, "one"),
        ("", "two"),
        (third.member_id, "one"),
        ("stranger", "three"),
        ("stranger", None),
        ("", "unknown"),
        ("", None),
        (third.member_id, "unknown"),
    ]
    assert third.leave(*leaving) == [
        Code.NONE,
        Code.NONE,
        Code.UNKNOWN_MEMBER_ID,
        Code.FENCED_INSTANCE_ID,
        Code.UNKNOWN_MEMBER_ID,
        Code.UNKNOWN_MEMBER_ID,
        Code.UNKNOWN_MEMBER_ID,
        Code.UNKNOWN_MEMBER_ID,
    ]
    assert third.heartbeat() is Code.REBALANCE_IN_PROGRESS
    assert len(third.describe().members) == 1


def test_a_static_member_leaves_without_its_instance_id_too(enter: Enter) -> None:
    member = enter("one")
    member.lead()
    assert member.leave((member.member_id, None), version=3) == [Code.NONE]
    assert member.state() == "Empty"


def test_a_member_id_that_was_not_used_can_leave(enter: Enter) -> None:
    member, other = enter(), enter()
    other.lead()
    member.join()
    assert member.leave() == [Code.NONE]
    assert member.leave() == [Code.UNKNOWN_MEMBER_ID]
    assert Code(member.join().error_code) is Code.UNKNOWN_MEMBER_ID


# --- a protocol that is rolled out while the group lives


def test_members_change_their_protocol_one_by_one(enter: Enter) -> None:
    """Eager to cooperative, as KIP-429 has it: each member twice, and the group never stops."""
    both = (*STICKY, *RANGE)
    leader, follower = pair(enter)
    steps = [(leader, both), (follower, both), (leader, STICKY), (follower, STICKY)]
    spoken: dict[Member, Protocols] = {leader: RANGE, follower: RANGE}
    chosen = []
    for member, protocols in steps:
        other = follower if member is leader else leader
        spoken[member] = protocols
        member.send_join(protocols=protocols)
        other.await_state("PreparingRebalance")
        other.send_join(protocols=spoken[other])
        answers = [member.heard(), other.heard()]
        assert [each.error_code for each in answers] == [0, 0]
        chosen.append(answers[0].protocol_name)
        leader.sync(assignments={}, protocol_name=chosen[-1])
        follower.sync(protocol_name=chosen[-1])
    assert chosen == ["range", "sticky", "sticky", "sticky"]


# --- questions


def test_a_group_is_shown_as_it_is(enter: Enter) -> None:
    leader, _ = pair(enter, "one", "two")
    for version in range(7):
        described = leader.describe(version)
        assert (described.group_state, described.protocol_type) == ("Stable", "consumer")
        assert described.protocol_data == "range"
        members = {each.member_id: each for each in described.members}
        mine = members[leader.member_id]
        assert (mine.client_id, mine.client_host) == ("raw", "/127.0.0.1")
        assert (mine.member_metadata, mine.member_assignment) == (RANGE[0][1], b"F")
        assert mine.group_instance_id == ("one" if version >= 4 else None)
    for version in range(6):
        ((protocol_type, state, kind),) = leader.listed(version)
        assert protocol_type == "consumer"
        assert state == ("Stable" if version >= 4 else "")
        assert kind == ("classic" if version >= 5 else "")


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        (["Stable"], [], 1),
        (["stable", "Empty"], [], 1),
        (["Empty"], [], 0),
        (["Nonsense"], [], 0),
        ([], ["classic"], 1),
        ([], ["CLASSIC"], 1),
        ([], ["consumer"], 0),
        (["Stable"], ["consumer", "classic"], 1),
        ([], ["Nonsense"], 0),
    ],
)
def test_groups_are_listed_by_state_and_type(
    enter: Enter, states: list[str], types: list[str], found: int
) -> None:
    member = enter()
    member.lead()
    assert len(member.listed(states=states, types=types)) == found


def test_only_an_empty_group_can_be_deleted(enter: Enter) -> None:
    member = enter()
    member.lead()
    assert member.delete_group() is Code.NON_EMPTY_GROUP
    member.leave()
    assert member.delete_group() is Code.NONE
    assert member.listed() == []
    assert member.delete_group() is Code.GROUP_ID_NOT_FOUND
