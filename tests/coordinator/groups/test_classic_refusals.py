"""What a classic group refuses, and with which code; what it picks among protocols; reload."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.groups.classic.group import GroupState
from wire.error_code import ErrorCode

RANGE_FIRST = (("range", b"r"), ("sticky", b"s"))
STICKY_FIRST = (("sticky", b"s"), ("range", b"r"))


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol_type": "connect"},
        {"protocols": (("cooperative-sticky", b""),)},
        {"protocols": ()},
    ],
)
def test_a_member_that_fits_with_nobody_is_refused(driver: Any, fields: dict[str, Any]) -> None:
    (leader,) = driver.stable(1)
    newcomer = driver.joined(driver.join(**fields))
    assert newcomer.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert newcomer.member_id == ""
    known = driver.joined(driver.join(leader, **fields))
    assert known.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.heartbeat(leader) is ErrorCode.NONE


@pytest.mark.parametrize("fields", [{"protocol_type": ""}, {"protocols": ()}])
def test_an_empty_group_wants_a_protocol(driver: Any, fields: dict[str, Any]) -> None:
    answer = driver.joined(driver.join(**fields))
    assert answer.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.group.is_forgettable


def test_an_emptied_group_takes_another_protocol_type(driver: Any) -> None:
    driver.leave(*driver.stable(1))
    answer = driver.joined(driver.join(protocol_type="connect", protocols=(("eager", b""),)))
    assert (answer.error_code, answer.protocol_type) == (ErrorCode.NONE, "connect")


def test_the_protocol_with_most_votes_among_those_of_all_wins(driver: Any) -> None:
    leader = driver.joined(driver.join(protocols=(*RANGE_FIRST, ("only-mine", b"")))).member_id
    driver.join(protocols=STICKY_FIRST)
    driver.join(protocols=STICKY_FIRST)
    answer = driver.joined(driver.join(leader, protocols=(*RANGE_FIRST, ("only-mine", b""))))
    assert answer.protocol_name == "sticky"
    assert {member.metadata for member in answer.members} == {b"s"}


def test_between_equal_votes_the_leader_decides(driver: Any) -> None:
    leader = driver.joined(driver.join(protocols=RANGE_FIRST)).member_id
    driver.join(protocols=STICKY_FIRST)
    assert driver.joined(driver.join(leader, protocols=RANGE_FIRST)).protocol_name == "range"


def test_a_protocol_named_twice_counts_once(driver: Any) -> None:
    twice = (("range", b"1"), ("range", b"2"))
    answer = driver.joined(driver.join(protocols=twice))
    assert answer.protocol_name == "range"
    driver.join()
    assert driver.joined(driver.join(answer.member_id, protocols=twice)).generation_id == 2


def test_a_full_group_takes_nobody_but_its_members(make_driver: Any) -> None:
    driver = make_driver(size_max=2)
    leader, follower = driver.stable(2)
    refused = driver.joined(driver.join())
    assert refused.error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    rejoined = driver.join(leader)
    driver.join(follower)
    assert driver.joined(rejoined).error_code is ErrorCode.NONE


def test_in_a_rebalance_the_places_go_to_whoever_comes_first(make_driver: Any) -> None:
    driver = make_driver(size_max=2)
    leader, follower = driver.stable(2)
    rejoined = driver.join(leader)
    newcomer = driver.join()
    late = driver.joined(driver.join(follower))
    assert (late.error_code, late.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert driver.joined(newcomer).generation_id == driver.joined(rejoined).generation_id == 3
    assert len(driver.group.members) == 2


def test_a_full_group_lets_go_of_the_id_it_gave_out(make_driver: Any) -> None:
    driver = make_driver(size_max=1)
    pending = driver.joined(driver.join(must_know_its_id=True)).member_id
    driver.stable(1)
    assert driver.joined(driver.join(pending)).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not driver.group.pending_members


@pytest.mark.parametrize(
    ("generation_change", "member", "code"),
    [
        (0, None, ErrorCode.NONE),
        (1, None, ErrorCode.ILLEGAL_GENERATION),
        (-1, None, ErrorCode.ILLEGAL_GENERATION),
        (0, "stranger", ErrorCode.UNKNOWN_MEMBER_ID),
        (1, "stranger", ErrorCode.UNKNOWN_MEMBER_ID),
        (0, "", ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_only_members_of_this_generation_heartbeat_and_sync(
    driver: Any, generation_change: int, member: str | None, code: ErrorCode
) -> None:
    (leader,) = driver.stable(1)
    member_id = leader if member is None else member
    generation_id = driver.group.generation_id + generation_change
    assert driver.heartbeat(member_id, generation_id) is code
    assert driver.synced(driver.sync(member_id, generation_id)).error_code is code


@pytest.mark.parametrize("fields", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}])
def test_a_sync_for_another_protocol_is_refused(driver: Any, fields: dict[str, str]) -> None:
    (leader,) = driver.stable(1)
    answer = driver.synced(driver.sync(leader, **fields))
    assert answer.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_sync_of_this_protocol_is_taken(driver: Any) -> None:
    (leader,) = driver.stable(1)
    token = driver.sync(leader, protocol_type="consumer", protocol_name="range")
    assert driver.synced(token).assignment == leader.encode()


def test_a_stable_group_comes_back_with_its_members_and_whole_sessions(driver: Any) -> None:
    leader, follower = driver.stable(2)
    driver.advance(9_000)
    driver.reload()
    assert driver.group.state is GroupState.STABLE
    driver.advance(9_999)
    assert driver.heartbeat(leader) is ErrorCode.NONE
    assert driver.group.members[follower].assignment == follower.encode()
    assert (driver.group.leader, driver.group.protocol_name) == (leader, "range")
    driver.advance(1)
    assert list(driver.group.members) == [leader]


def test_members_that_do_not_come_back_after_a_reload_expire(driver: Any) -> None:
    driver.stable(3)
    driver.reload()
    driver.advance(10_000)
    assert driver.group.state is GroupState.EMPTY
    assert driver.records[-1].members == []


@pytest.mark.parametrize("completing", [False, True])
def test_a_reload_in_a_rebalance_goes_back_to_the_last_stable_generation(
    driver: Any, completing: bool
) -> None:
    leader, follower = driver.stable(2)
    driver.join()
    if completing:
        driver.join(leader)
        driver.join(follower)
        assert driver.group.state is GroupState.COMPLETING_REBALANCE
        assert driver.group.generation_id == 3
    driver.reload()
    assert (driver.group.state, driver.group.generation_id) == (GroupState.STABLE, 2)
    assert driver.heartbeat(leader, 3) is ErrorCode.ILLEGAL_GENERATION
    assert driver.join(leader) not in driver.answers
    rejoined = driver.joined(driver.join(follower))
    assert rejoined.generation_id == 3


def test_an_empty_group_comes_back_empty_with_its_generation(driver: Any) -> None:
    driver.leave(*driver.stable(2))
    generation_id = driver.group.generation_id
    driver.reload()
    assert (driver.group.state, driver.group.generation_id) == (GroupState.EMPTY, generation_id)
    assert driver.joined(driver.join()).generation_id == generation_id + 1
