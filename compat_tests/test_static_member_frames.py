"""Static members (KIP-345) and leaders that restart (KIP-814), frame by frame, on both brokers."""

from __future__ import annotations

import pytest

from compat_tests.conftest import Enter
from compat_tests.group_frames import OTHER_TOPIC, RANGE, STICKY, Code, pair


def test_a_static_member_needs_no_id_before_it_joins(enter: Enter) -> None:
    member = enter("one")
    joined = member.join()
    assert (joined.error_code, joined.generation_id) == (0, 1)
    assert joined.members[0].group_instance_id == "one"
    assert joined.member_id.startswith("one-")


def test_a_restarted_follower_gets_its_place_back(enter: Enter) -> None:
    leader, follower = pair(enter, "one", "two")
    former = follower.member_id
    restarted = enter("two")
    joined = restarted.join()
    assert (joined.generation_id, joined.members) == (2, [])
    assert joined.leader == leader.member_id
    assert joined.member_id != former
    assert restarted.sync().assignment == b"S"
    assert leader.heartbeat() is Code.NONE
    for fenced in (
        follower.heartbeat(),
        Code(follower.sync().error_code),
        Code(follower.join().error_code),
        *follower.leave(),
    ):
        assert fenced is Code.FENCED_INSTANCE_ID
    follower.instance = None
    assert follower.heartbeat() is Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [5, 6, 7, 8, 9])
def test_a_restarted_leader_does_not_assign_again(enter: Enter, version: int) -> None:
    leader, follower = pair(enter, "one", "two")
    former = leader.member_id
    restarted = enter("one")
    joined = restarted.join(version)
    assert joined.generation_id == 2
    if version >= 9:
        assert joined.skip_assignment
        assert joined.leader == joined.member_id
        assert len(joined.members) == 2
    else:
        assert joined.leader == former
        assert joined.members == []
    assert restarted.sync().assignment == b"F"
    assert follower.heartbeat() is Code.NONE


def test_a_restart_that_subscribes_to_something_else(enter: Enter) -> None:
    leader, _ = pair(enter, "one", "two")
    restarted = enter("two")
    joined = restarted.join(protocols=OTHER_TOPIC)
    assert joined.generation_id == 2
    assert leader.heartbeat() is Code.NONE


def test_a_restart_that_prefers_another_protocol_rebalances(enter: Enter) -> None:
    enter("one").lead(protocols=(*RANGE, *STICKY))
    joined = enter("one").join(protocols=(*STICKY, *RANGE))
    assert (joined.generation_id, joined.protocol_name) == (2, "sticky")


def test_a_restart_before_the_assignment_begins_again(enter: Enter) -> None:
    leader, follower = pair(enter, "one", "two")
    leader.send_join()
    follower.await_state("PreparingRebalance")
    follower.join()
    leader.heard()
    follower.send_sync()
    restarted = enter("two")
    restarted.send_join()
    assert Code(follower.heard().error_code) is Code.FENCED_INSTANCE_ID
    leader.await_state("PreparingRebalance")
    assert leader.heartbeat() is Code.REBALANCE_IN_PROGRESS
    leader.join()
    assert restarted.heard().generation_id == 4


def test_a_restart_while_the_former_join_is_parked(enter: Enter) -> None:
    leader, follower = pair(enter, "one", "two")
    leader.send_join()
    follower.await_state("PreparingRebalance")
    restarted = enter("one")
    restarted.send_join()
    assert Code(leader.heard().error_code) is Code.FENCED_INSTANCE_ID
    follower.join()
    assert restarted.heard().generation_id == 3
