"""Static members (KIP-345, KIP-814): a restart keeps its place, a double is fenced."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.groups.classic.group import GroupState
from wire.error_code import ErrorCode


def two_static(driver: Any) -> tuple[str, str]:
    """A stable group of instances a, the leader, and b; return their member ids."""
    leader = driver.joined(driver.join(group_instance_id="a")).member_id
    second = driver.join(group_instance_id="b")
    driver.join(leader, group_instance_id="a")
    follower = driver.joined(second).member_id
    assigned = {leader: b"A", follower: b"B"}
    driver.sync(leader, group_instance_id="a", assignments=assigned)
    driver.sync(follower, group_instance_id="b")
    return leader, follower


def test_a_static_member_needs_no_second_join_for_its_id(driver: Any) -> None:
    answer = driver.joined(driver.join(group_instance_id="a", must_know_its_id=True))
    assert (answer.error_code, answer.generation_id) == (ErrorCode.NONE, 1)
    assert answer.members[0].group_instance_id == "a"


@pytest.mark.parametrize("can_skip", [False, True])
def test_a_restarted_follower_gets_the_same_assignment_without_a_rebalance(
    driver: Any, can_skip: bool
) -> None:
    leader, follower = two_static(driver)
    answer = driver.joined(driver.join(group_instance_id="b", can_skip_assignment=can_skip))
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 2, leader)
    assert answer.member_id != follower
    assert not answer.skip_assignment
    assert driver.group.state is GroupState.STABLE
    synced = driver.synced(driver.sync(answer.member_id, group_instance_id="b"))
    assert synced.assignment == b"B"
    assert driver.heartbeat(leader, instance="a") is ErrorCode.NONE


def test_a_restarted_leader_is_told_to_skip_the_assignment(driver: Any) -> None:
    two_static(driver)
    answer = driver.joined(driver.join(group_instance_id="a", can_skip_assignment=True))
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert len(answer.members) == 2
    synced = driver.synced(driver.sync(answer.member_id, group_instance_id="a"))
    assert synced.assignment == b"A"


def test_a_restarted_leader_that_cannot_skip_is_told_of_another_leader(driver: Any) -> None:
    leader, _ = two_static(driver)
    answer = driver.joined(driver.join(group_instance_id="a"))
    assert answer.leader == leader != answer.member_id
    assert answer.members == ()
    assert driver.group.leader == answer.member_id


def test_the_former_incarnation_is_fenced(driver: Any) -> None:
    _, follower = two_static(driver)
    driver.join(group_instance_id="b")
    assert driver.heartbeat(follower, instance="b") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID
    synced = driver.synced(driver.sync(follower, group_instance_id="b"))
    assert synced.error_code is ErrorCode.FENCED_INSTANCE_ID
    rejoined = driver.joined(driver.join(follower, group_instance_id="b"))
    assert rejoined.error_code is ErrorCode.FENCED_INSTANCE_ID
    assert driver.leave(follower, instance="b") == [ErrorCode.FENCED_INSTANCE_ID]


def test_an_unknown_instance_is_an_unknown_member(driver: Any) -> None:
    leader, _ = two_static(driver)
    assert driver.heartbeat(leader, instance="c") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_parked_join_of_the_former_incarnation_is_answered(driver: Any) -> None:
    two_static(driver)
    newcomer = driver.join()
    parked = driver.join(group_instance_id="b")
    again = driver.join(group_instance_id="b")
    assert driver.joined(parked).error_code is ErrorCode.FENCED_INSTANCE_ID
    assert again not in driver.answers
    assert newcomer not in driver.answers


def test_a_parked_sync_of_the_former_incarnation_is_answered(driver: Any) -> None:
    leader, follower = two_static(driver)
    newcomer = driver.join()
    driver.join(leader, group_instance_id="a")
    driver.join(follower, group_instance_id="b")
    assert newcomer in driver.answers
    parked = driver.sync(follower, group_instance_id="b")
    driver.join(group_instance_id="b")
    assert driver.synced(parked).error_code is ErrorCode.FENCED_INSTANCE_ID
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_restart_that_changes_the_protocol_rebalances(driver: Any) -> None:
    both = (("range", b"r"), ("sticky", b"s"))
    (leader,) = driver.stable(1, protocols=both, group_instance_id="a")
    answer = driver.join(group_instance_id="a", protocols=(("sticky", b"s"), ("range", b"r")))
    assert driver.joined(answer).generation_id == 2
    assert driver.group.protocol_name == "sticky"


def test_a_static_member_stays_through_a_rebalance_it_missed(driver: Any) -> None:
    leader, follower = two_static(driver)
    rejoined = driver.join(leader, group_instance_id="a", session_timeout_ms=90_000)
    for _ in range(6):
        driver.advance(9_999)
        driver.heartbeat(follower, instance="b")
    driver.advance(6)
    assert driver.joined(rejoined).generation_id == 3
    assert follower in driver.group.members


def test_a_rebalance_without_anyone_back_waits_for_sessions(driver: Any) -> None:
    leader, follower = two_static(driver)
    newcomer = driver.join()
    driver.leave(f"m{newcomer}")
    for _ in range(20):
        driver.advance(5_000)
        for member_id, instance in ((leader, "a"), (follower, "b")):
            driver.heartbeat(member_id, instance=instance)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert set(driver.group.static_members) == {"a", "b"}
    driver.advance(70_000)
    assert not driver.group.members


def test_an_administrator_removes_a_static_member_by_instance_alone(driver: Any) -> None:
    leader, follower = two_static(driver)
    assert driver.leave("", instance="b") == [ErrorCode.NONE]
    assert driver.leave("", instance="zzz") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert follower not in driver.group.members
    assert driver.heartbeat(leader, instance="a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_restart_is_durable_before_anyone_relies_on_it(driver: Any) -> None:
    two_static(driver)
    written = len(driver.records)
    answer = driver.joined(driver.join(group_instance_id="b"))
    assert len(driver.records) == written + 1
    driver.reload()
    assert driver.heartbeat(answer.member_id, instance="b") is ErrorCode.NONE
    assert driver.group.members[answer.member_id].assignment == b"B"


def test_a_restarted_instance_outlives_the_session_of_the_former(driver: Any) -> None:
    two_static(driver)
    driver.advance(9_000)
    answer = driver.joined(driver.join(group_instance_id="b"))
    driver.advance(9_000)
    assert answer.member_id in driver.group.members


def test_a_static_leader_that_missed_the_rebalance_leads_no_more(driver: Any) -> None:
    leader, follower = two_static(driver)
    rejoined = driver.join(follower, group_instance_id="b", protocols=(("range", b"new"),))
    for _ in range(6):
        driver.advance(9_999)
        driver.heartbeat(leader, instance="a")
    driver.advance(6)
    assert driver.joined(rejoined).leader == follower
    assert leader in driver.group.members


def test_a_static_member_that_hung_up_while_joining_has_its_session_to_come_back(
    driver: Any,
) -> None:
    leader, follower = two_static(driver)
    driver.hang_up(driver.join(follower, group_instance_id="b", protocols=(("range", b"new"),)))
    rejoined = driver.joined(driver.join(leader, group_instance_id="a"))
    assert (rejoined.generation_id, rejoined.leader) == (3, leader)
    driver.advance(9_999)
    assert follower in driver.group.members
    driver.advance(1)
    assert follower not in driver.group.members


def test_a_new_static_member_that_restarts_while_it_joins_waits_as_long_as_it_must(
    driver: Any,
) -> None:
    driver.stable(1, session_timeout_ms=200_000)
    driver.join(group_instance_id="a", session_timeout_ms=1_000)
    again = driver.join(group_instance_id="a", session_timeout_ms=1_000)
    driver.advance(50_000)
    assert again not in driver.answers
    assert driver.group.static_members["a"] == f"m{again}"


def test_a_restart_can_be_what_a_rebalance_waited_for(driver: Any) -> None:
    leader, _ = two_static(driver)
    rejoined = driver.join(leader, group_instance_id="a")
    assert rejoined not in driver.answers
    restarted = driver.join(group_instance_id="b")
    assert driver.joined(rejoined).generation_id == driver.joined(restarted).generation_id == 3
