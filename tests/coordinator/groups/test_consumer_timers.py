"""Which timer a member of a consumer group gets: the table in `consumer.timers`."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from coordinator.groups.consumer.member import ClassicProtocols, Member, MemberState
from coordinator.groups.consumer.timers import MemberTimer, Timers

SESSION_MS = 45_000
RESTING = Member(member_id="a", rebalance_timeout_ms=10_000, epoch=3)
REVOKING = replace(RESTING, state=MemberState.UNREVOKED_PARTITIONS, revoking={UUID(int=1): {0: 2}})
CLASSIC = replace(RESTING, classic=ClassicProtocols(6_000, (("range", b""),)))


@pytest.fixture
def timers() -> Timers:
    return Timers()


def heard(timers: Timers, before: Member | None, member: Member, now_ms: int) -> None:
    timers.on_heartbeat(before, member, SESSION_MS, now_ms)


def given_up(timers: Timers, now_ms: int) -> MemberTimer | None:
    """Return the timer that ends the member's stay at `now_ms`."""
    found = timers.expired(now_ms)
    assert [each.member_id for each in found] in ([], ["a"])
    return found[0].timer if found else None


def test_each_heartbeat_restarts_the_session(timers: Timers) -> None:
    heard(timers, None, RESTING, 0)
    heard(timers, RESTING, RESTING, 40_000)
    assert given_up(timers, 40_000 + SESSION_MS - 1) is None
    assert given_up(timers, 40_000 + SESSION_MS) is MemberTimer.SESSION


def test_heartbeats_do_not_put_off_a_revocation(timers: Timers) -> None:
    heard(timers, RESTING, REVOKING, 0)
    heard(timers, REVOKING, REVOKING, 9_000)
    assert given_up(timers, 10_000) is MemberTimer.REVOCATION


@pytest.mark.parametrize("after", [RESTING, replace(REVOKING, revoking={})])
def test_a_member_with_nothing_to_give_back_has_its_session_alone(
    timers: Timers, after: Member
) -> None:
    heard(timers, RESTING, REVOKING, 0)
    heard(timers, REVOKING, after, 9_000)
    assert given_up(timers, 10_000) is None


def test_a_new_demand_is_given_the_whole_time(timers: Timers) -> None:
    heard(timers, RESTING, REVOKING, 0)
    more = replace(REVOKING, revoking={UUID(int=1): {0: 2, 1: 2}})
    heard(timers, REVOKING, more, 9_000)
    assert given_up(timers, 18_999) is None
    assert given_up(timers, 19_000) is MemberTimer.REVOCATION


def test_a_member_that_is_away_has_its_session_alone(timers: Timers) -> None:
    heard(timers, RESTING, REVOKING, 0)
    timers.on_absence("a")
    assert given_up(timers, SESSION_MS - 1) is None
    assert given_up(timers, SESSION_MS) is MemberTimer.SESSION


def test_a_classic_member_has_the_session_timeout_that_it_named(timers: Timers) -> None:
    heard(timers, None, CLASSIC, 0)
    timers.on_classic_heartbeat(CLASSIC, 5_000)
    assert given_up(timers, 10_999) is None
    assert given_up(timers, 11_000) is MemberTimer.SESSION


def test_a_classic_member_has_to_fetch_its_assignment_in_time(timers: Timers) -> None:
    heard(timers, None, CLASSIC, 0)
    timers.on_classic_join(CLASSIC, 0)
    timers.on_classic_heartbeat(CLASSIC, 9_000)
    assert given_up(timers, 10_000) is MemberTimer.SYNC
    timers.on_classic_sync(CLASSIC, 10_000)
    assert given_up(timers, 10_000) is None


def test_to_be_told_to_join_again_twice_gives_no_more_time(timers: Timers) -> None:
    heard(timers, None, CLASSIC, 0)
    timers.on_told_to_join(CLASSIC, 0)
    timers.on_classic_heartbeat(CLASSIC, 9_000)
    timers.on_told_to_join(CLASSIC, 9_000)
    assert given_up(timers, 10_000) is MemberTimer.JOIN


def test_a_member_that_now_speaks_the_consumer_protocol_owes_no_join(timers: Timers) -> None:
    heard(timers, None, CLASSIC, 0)
    timers.on_classic_join(CLASSIC, 0)
    timers.on_told_to_join(CLASSIC, 0)
    heard(timers, CLASSIC, RESTING, 1_000)
    assert given_up(timers, 10_000) is None


def test_a_member_that_is_gone_is_given_up_no_more(timers: Timers) -> None:
    heard(timers, RESTING, REVOKING, 0)
    timers.forget("a")
    assert given_up(timers, 10**9) is None
    assert timers.wake_ms is None
