"""Members of a classic group: they join, are assigned, heartbeat, leave and expire."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.groups.classic.group import GroupState
from wire.error_code import ErrorCode


def test_the_first_member_leads_its_own_generation_at_once(driver: Any) -> None:
    answer = driver.joined(driver.join())
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, answer.member_id)
    assert answer.protocol_name == "range"
    assert [member.metadata for member in answer.members] == [b"topics"]
    assert driver.group.state is GroupState.COMPLETING_REBALANCE


def test_a_member_gets_its_id_before_it_joins(driver: Any) -> None:
    first = driver.joined(driver.join(must_know_its_id=True))
    assert first.error_code is ErrorCode.MEMBER_ID_REQUIRED
    assert not driver.group.members
    second = driver.joined(driver.join(first.member_id, must_know_its_id=True))
    assert (second.error_code, second.member_id) == (0, first.member_id)


def test_an_id_that_is_never_used_is_forgotten_with_its_session(driver: Any) -> None:
    answer = driver.joined(driver.join(must_know_its_id=True))
    driver.advance(10_000)
    assert not driver.group.pending_members
    late = driver.joined(driver.join(answer.member_id))
    assert late.error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_ids_given_out_are_bounded(make_driver: Any) -> None:
    driver = make_driver(pending_members_max=3)
    for _ in range(10):
        driver.join(must_know_its_id=True)
    assert list(driver.group.pending_members) == ["m8", "m9", "m10"]


def test_a_rebalance_waits_for_an_id_that_was_just_given_out(driver: Any) -> None:
    (leader,) = driver.stable(1)
    pending = driver.joined(driver.join(must_know_its_id=True)).member_id
    assert driver.group.state is GroupState.STABLE
    rejoined = driver.join(leader)
    assert rejoined not in driver.answers
    driver.join(pending)
    assert driver.joined(rejoined).generation_id == 2
    assert {member.member_id for member in driver.joined(rejoined).members} == {leader, pending}


def test_only_the_leader_hears_who_the_members_are(driver: Any) -> None:
    leader = driver.joined(driver.join()).member_id
    second = driver.join()
    assert second not in driver.answers
    rejoined = driver.join(leader)
    assert len(driver.joined(rejoined).members) == 2
    assert driver.joined(second).members == ()
    assert driver.joined(second).leader == leader


def test_everyone_gets_the_assignment_the_leader_brought(driver: Any) -> None:
    leader, follower = driver.formed(2)
    waiting = driver.sync(follower)
    assert waiting not in driver.answers
    brought = driver.sync(leader, assignments={leader: b"L", follower: b"F", "stranger": b"S"})
    assert driver.synced(brought).assignment == b"L"
    assert driver.synced(waiting).assignment == b"F"
    assert driver.group.state is GroupState.STABLE
    again = driver.sync(follower)
    assert driver.synced(again).assignment == b"F"
    assert "stranger" not in driver.group.members


def test_a_member_without_an_assignment_gets_an_empty_one(driver: Any) -> None:
    (leader,) = driver.stable(1)
    joining = driver.join()
    driver.join(leader)
    follower = driver.joined(joining).member_id
    driver.sync(leader, assignments={leader: b"L"})
    assert driver.synced(driver.sync(follower)).assignment == b""


def test_a_new_member_sends_everyone_back_to_join(driver: Any) -> None:
    leader, follower = driver.stable(2)
    assert driver.heartbeat(leader) is ErrorCode.NONE
    driver.join()
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.synced(driver.sync(leader)).error_code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_join_between_join_and_sync_sends_back_who_waits_for_the_assignment(driver: Any) -> None:
    leader = driver.joined(driver.join()).member_id
    second = driver.join()
    driver.join(leader)
    waiting = driver.sync(driver.joined(second).member_id)
    driver.join()
    assert driver.synced(waiting).error_code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_rebalance_leaves_behind_who_does_not_rejoin_in_time(driver: Any) -> None:
    leader, follower = driver.stable(2, rebalance_timeout_ms=5_000)
    newcomer = driver.join(rebalance_timeout_ms=5_000)
    rejoined = driver.join(follower, rebalance_timeout_ms=5_000)
    driver.advance(4_999)
    assert rejoined not in driver.answers
    driver.advance(1)
    assert driver.joined(rejoined).generation_id == driver.joined(newcomer).generation_id == 3
    assert leader not in driver.group.members
    assert driver.group.leader in (follower, driver.joined(newcomer).member_id)
    assert driver.heartbeat(leader) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_rebalance_timeout_is_that_of_the_slowest_member(driver: Any) -> None:
    (leader,) = driver.stable(1, rebalance_timeout_ms=7_000)
    newcomer = driver.join(rebalance_timeout_ms=1_000)
    driver.advance(6_999)
    assert newcomer not in driver.answers
    driver.advance(1)
    assert driver.joined(newcomer).generation_id == 2
    assert leader not in driver.group.members


def test_a_member_that_never_fetches_its_assignment_is_removed(driver: Any) -> None:
    leader = driver.joined(driver.join(rebalance_timeout_ms=5_000)).member_id
    second = driver.join(rebalance_timeout_ms=5_000)
    driver.join(leader, rebalance_timeout_ms=5_000)
    driver.sync(leader, assignments={})
    for _ in range(5):
        driver.advance(1_000)
        driver.heartbeat(leader)
        driver.heartbeat(driver.joined(second).member_id)
    assert list(driver.group.members) == [leader]
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_silent_member_expires_and_the_rest_rebalances(driver: Any) -> None:
    leader, follower = driver.stable(2)
    for _ in range(9):
        driver.advance(1_000)
        assert driver.heartbeat(leader) is ErrorCode.NONE
    driver.advance(1_000)
    assert list(driver.group.members) == [leader]
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.joined(driver.join(leader)).generation_id == 3
    assert driver.heartbeat(follower, 3) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_whose_join_is_parked_does_not_expire(driver: Any) -> None:
    leader, follower = driver.stable(2, session_timeout_ms=1_000)
    driver.join(leader, session_timeout_ms=1_000)
    rejoined = driver.join(follower, session_timeout_ms=60_000)
    assert driver.joined(rejoined).error_code is ErrorCode.NONE
    driver.advance(900)
    assert leader in driver.group.members


def test_the_last_to_leave_empties_the_group_also_on_disk(driver: Any) -> None:
    leader, follower = driver.stable(2)
    assert driver.leave(leader, follower, "unknown") == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.group.state is GroupState.EMPTY
    assert driver.records[-1].members == []
    assert driver.records[-1].protocol_type == "consumer"
    assert (driver.records[-1].protocol, driver.records[-1].leader) == (None, None)
    driver.advance(10_000)
    assert driver.group.deadline_ms is None


def test_leaving_answers_a_parked_join(driver: Any) -> None:
    driver.stable(2)
    newcomer = driver.join()
    driver.leave(next(m for m in driver.group.members if m == f"m{newcomer}"))
    assert driver.joined(newcomer).error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_unused_id_can_leave_and_holds_nobody_up(driver: Any) -> None:
    (leader,) = driver.stable(1)
    pending = driver.joined(driver.join(must_know_its_id=True)).member_id
    rejoined = driver.join(leader)
    assert rejoined not in driver.answers
    assert driver.leave(pending) == [ErrorCode.NONE]
    assert driver.joined(rejoined).generation_id == 2


def test_an_unused_id_that_leaves_a_stable_group_disturbs_nobody(driver: Any) -> None:
    (leader,) = driver.stable(1)
    pending = driver.joined(driver.join(must_know_its_id=True)).member_id
    driver.leave(pending)
    assert driver.heartbeat(leader) is ErrorCode.NONE


def test_a_follower_that_says_nothing_new_is_told_the_same_generation(driver: Any) -> None:
    leader, follower = driver.stable(2)
    answer = driver.joined(driver.join(follower))
    assert (answer.error_code, answer.generation_id, answer.members) == (0, 2, ())
    assert driver.group.state is GroupState.STABLE


def test_a_leader_that_rejoins_makes_a_new_generation(driver: Any) -> None:
    leader, follower = driver.stable(2)
    rejoined = driver.join(leader)
    assert rejoined not in driver.answers
    driver.join(follower)
    assert driver.joined(rejoined).generation_id == 3


def test_a_follower_with_other_topics_makes_a_new_generation(driver: Any) -> None:
    leader, follower = driver.stable(2)
    assert driver.join(follower, protocols=(("range", b"other"),)) not in driver.answers
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_answer_to_a_join_can_be_asked_for_again_before_the_assignment(driver: Any) -> None:
    leader = driver.joined(driver.join()).member_id
    again = driver.joined(driver.join(leader))
    assert (again.generation_id, len(again.members)) == (1, 1)


def test_a_second_join_of_the_same_member_supersedes_the_first(driver: Any) -> None:
    leader, follower = driver.stable(2)
    first = driver.join(leader)
    second = driver.join(leader)
    assert driver.joined(first).error_code is ErrorCode.REBALANCE_IN_PROGRESS
    assert second not in driver.answers
    driver.join(follower)
    assert driver.joined(second).error_code is ErrorCode.NONE


def test_a_client_that_hung_up_while_joining_is_not_taken_into_the_generation(
    driver: Any,
) -> None:
    leader, follower = driver.stable(2)
    parked, newcomer = driver.join(leader), driver.join()
    driver.hang_up(parked)
    driver.hang_up(newcomer)
    rejoined = driver.joined(driver.join(follower))
    assert rejoined.leader == follower
    assert list(driver.group.members) == [follower]
    # Else their connections would wait for ever, where only their clients' side is closed.
    for token in (parked, newcomer):
        assert driver.joined(token).error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_members_all_hung_up_is_empty(driver: Any) -> None:
    leader, follower = driver.stable(2)
    driver.hang_up(driver.join(leader))
    driver.hang_up(driver.join())
    assert driver.leave(follower) == [ErrorCode.NONE]
    assert driver.group.state is GroupState.EMPTY


@pytest.mark.parametrize("session_timeout_ms", [1_000, 30_000])
def test_a_new_member_is_waited_for_beyond_its_session(
    driver: Any, session_timeout_ms: int
) -> None:
    driver.stable(1, rebalance_timeout_ms=600_000, session_timeout_ms=60_000)
    newcomer = driver.join(rebalance_timeout_ms=600_000, session_timeout_ms=session_timeout_ms)
    driver.advance(59_000)
    assert newcomer not in driver.answers
    assert f"m{newcomer}" in driver.group.members


def test_a_session_begins_when_the_member_is_answered(driver: Any) -> None:
    (leader,) = driver.stable(1, session_timeout_ms=60_000)
    newcomer = driver.join(session_timeout_ms=10_000)
    driver.advance(50_000)
    driver.join(leader, session_timeout_ms=60_000)
    member_id = driver.joined(newcomer).member_id
    driver.advance(9_999)
    assert driver.heartbeat(member_id) is ErrorCode.NONE


def test_a_session_begins_again_when_a_parked_sync_is_sent_back(driver: Any) -> None:
    leader = driver.joined(driver.join(session_timeout_ms=60_000)).member_id
    second = driver.join(session_timeout_ms=10_000)
    driver.join(leader, session_timeout_ms=60_000)
    follower = driver.joined(second).member_id
    waiting = driver.sync(follower)
    driver.advance(50_000)
    driver.join()
    assert driver.synced(waiting).error_code is ErrorCode.REBALANCE_IN_PROGRESS
    driver.advance(9_999)
    assert follower in driver.group.members
    driver.advance(1)
    assert follower not in driver.group.members


def test_a_group_that_has_synced_is_left_alone(driver: Any) -> None:
    leader, follower = driver.stable(2, rebalance_timeout_ms=5_000)
    for _ in range(10):
        driver.advance(1_000)
        assert driver.heartbeat(leader) is ErrorCode.NONE
        assert driver.heartbeat(follower) is ErrorCode.NONE


def test_asking_for_the_assignment_is_a_sign_of_life(driver: Any) -> None:
    (leader,) = driver.stable(1)
    driver.advance(9_999)
    driver.sync(leader)
    driver.advance(9_999)
    assert leader in driver.group.members


def test_a_second_sync_of_the_same_member_supersedes_the_first(driver: Any) -> None:
    leader, follower = driver.formed(2)
    waiting, again = driver.sync(follower), driver.sync(follower)
    assert driver.synced(waiting).error_code is ErrorCode.REBALANCE_IN_PROGRESS
    driver.sync(leader, assignments={follower: b"F"})
    assert driver.synced(again).assignment == b"F"


def test_leaving_answers_a_parked_sync(driver: Any) -> None:
    _, follower = driver.formed(2)
    waiting = driver.sync(follower)
    driver.leave(follower)
    assert driver.synced(waiting).error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_assignment_that_no_longer_holds_is_not_shown(driver: Any) -> None:
    leader, follower = driver.stable(2)
    driver.join(leader)
    driver.join(follower)
    driver.join()
    assert {member.assignment for member in driver.group.members.values()} == {b""}


def test_an_initial_rebalance_waits_while_members_keep_coming(make_driver: Any) -> None:
    driver = make_driver(initial_rebalance_delay_ms=3_000)
    first = driver.join(rebalance_timeout_ms=7_000)
    driver.advance(2_000)
    second = driver.join(rebalance_timeout_ms=7_000)
    driver.advance(3_999)
    assert first not in driver.answers
    driver.advance(1)
    assert driver.joined(first).generation_id == driver.joined(second).generation_id == 1


def test_an_initial_rebalance_is_put_off_no_longer_than_the_rebalance_timeout(
    make_driver: Any,
) -> None:
    driver = make_driver(initial_rebalance_delay_ms=3_000)
    first = driver.join(rebalance_timeout_ms=7_000)
    for _ in range(6):
        driver.advance(1_000)
        driver.join(rebalance_timeout_ms=7_000)
    driver.advance(1_000)
    assert driver.joined(first).generation_id == 1
    assert len(driver.joined(first).members) == 7


def test_fifty_members_cost_in_proportion_to_their_number(make_driver: Any) -> None:
    def touched(count: int) -> int:
        driver = make_driver()
        members = driver.stable(count)
        before = len(driver.answers)
        driver.join()
        for member_id in members:
            driver.join(member_id)
        described = sum(
            len(answer.members)
            for token, answer in driver.answers.items()
            if token > before and hasattr(answer, "members")
        )
        return len(driver.answers) - before + described

    assert touched(50) < 6 * touched(10)
