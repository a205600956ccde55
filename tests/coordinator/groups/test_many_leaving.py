"""LeaveGroup may name a hundred thousand members that are gone: no function is called for each."""

from __future__ import annotations

from coordinator.groups.classic.group import ClassicGroup, GroupLimits
from coordinator.groups.classic.leaving import leave
from coordinator.groups.classic.requests import LeavingMember
from coordinator.groups.consumer.classic_members import is_gone
from coordinator.groups.consumer.group import ConsumerGroup
from tests.coordinator.groups.calls import calls_of
from wire.error_code import ErrorCode

STRANGERS = [
    *(LeavingMember(f"member-{number}") for number in range(500)),
    *(LeavingMember("", f"instance-{number}") for number in range(500)),
    *(LeavingMember("member", f"instance-{number}") for number in range(500)),
]


def test_strangers_that_leave_a_classic_group_cost_no_call_each() -> None:
    group = ClassicGroup("group", GroupLimits())
    assert calls_of(lambda: leave(group, STRANGERS, 0)) < 20
    assert {*leave(group, STRANGERS, 0)[0]} == {ErrorCode.UNKNOWN_MEMBER_ID}


def test_a_member_that_was_given_an_id_and_leaves_is_no_stranger() -> None:
    group = ClassicGroup("group", GroupLimits())
    for instance_id in (None, "instance"):
        group.add_pending("member", 1)
        codes, _ = leave(group, [LeavingMember("member", instance_id)] * 2, 0)
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]


def test_strangers_that_leave_a_consumer_group_are_seen_without_an_exception() -> None:
    assert all(is_gone(ConsumerGroup("group"), each) for each in STRANGERS)
