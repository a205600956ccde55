"""Limits that a configuration sets to groups and offsets, and restarts in every state of a group.

One broker of each kind, configured for all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker, make_broker, running
from compat_tests.conftest import Enter, EnterOn
from compat_tests.group_frames import OTHER_TOPIC, RANGE, Code, Member
from compat_tests.waiting import eventually

SETTINGS = {
    "group.min.session.timeout.ms": "700",
    "group.max.session.timeout.ms": "60000",
    "group.initial.rebalance.delay.ms": "1000",
    "group.max.size": "2",
    "offset.metadata.max.bytes": "10",
    "offsets.retention.check.interval.ms": "200",
}
TOPIC = "orders"


@pytest.fixture(scope="module")
def limited(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp(broker_kind)
    with running(make_broker(broker_kind, directory, SETTINGS)) as broker:
        create_topic(broker.bootstrap, TOPIC)
        yield broker


@pytest.fixture
def enter_limited(limited: Broker, enter_on: EnterOn) -> Enter:
    """As `enter`, on the broker with limits."""
    return enter_on(limited)


def keep(member: Member) -> None:
    """Commit an offset for the group: one without offsets and members may be forgotten at any time,
    and with it who was told an id to join with.
    """
    assert member.commit(TOPIC, 1) is Code.NONE


def two_at_once(enter: Enter, **fields: Any) -> tuple[Member, Member]:
    """Return leader and follower of a new group that waited for both."""
    members = enter(), enter()
    keep(members[0])
    for member in members:
        member.join(**fields)
    # One right after the other: the group waits for a second.
    for member in members:
        member.send_join(**fields)
    answers = [member.heard() for member in members]
    assert [each.generation_id for each in answers] == [1, 1]
    leader, follower = sorted(members, key=lambda one: one.member_id != answers[0].leader)
    leader.sync(assignments={each.member_id: each.member_id.encode() for each in members})
    assert follower.sync().assignment == follower.member_id.encode()
    return leader, follower


def test_a_new_group_waits_for_more_members(enter_limited: Enter) -> None:
    two_at_once(enter_limited)


@pytest.mark.parametrize(
    ("session_timeout_ms", "code"),
    [
        (699, Code.INVALID_SESSION_TIMEOUT),
        (700, Code.MEMBER_ID_REQUIRED),
        (60_000, Code.MEMBER_ID_REQUIRED),
        (60_001, Code.INVALID_SESSION_TIMEOUT),
    ],
)
def test_session_timeouts_have_bounds(
    enter_limited: Enter, session_timeout_ms: int, code: Code
) -> None:
    answer = enter_limited().join(session_timeout_ms=session_timeout_ms)
    assert Code(answer.error_code) is code


@pytest.mark.parametrize(("metadata", "code"), [("x" * 10, 0), ("x" * 11, 12), ("é" * 10, 0)])
def test_metadata_has_a_longest(enter_limited: Enter, metadata: str, code: int) -> None:
    assert enter_limited().commit(TOPIC, 1, metadata=metadata) == code


def test_a_group_takes_no_more_than_its_size(enter_limited: Enter) -> None:
    leader, follower = two_at_once(enter_limited)
    for instance in (None, "static"):
        late = enter_limited(instance)
        answer = late.join()
        assert Code(answer.error_code) is Code.GROUP_MAX_SIZE_REACHED
        assert (answer.member_id, answer.generation_id) == ("", -1)
    assert Code(late.join(3).error_code) is Code.GROUP_MAX_SIZE_REACHED
    assert leader.heartbeat() is Code.NONE
    assert follower.join().generation_id == 1


def test_while_a_group_waits_the_quicker_fill_it(enter_limited: Enter) -> None:
    leader, follower = two_at_once(enter_limited, rebalance_timeout_ms=6_000)
    leader.send_join(rebalance_timeout_ms=6_000)
    follower.await_state("PreparingRebalance")
    newcomer = enter_limited()
    newcomer.join()
    newcomer.send_join()
    eventually(lambda: len(follower.describe().members) == 3)
    assert Code(follower.join().error_code) is Code.GROUP_MAX_SIZE_REACHED
    assert len(leader.heard().members) == 2
    assert follower.heartbeat() is Code.UNKNOWN_MEMBER_ID


def test_offsets_are_kept_no_longer_than_their_client_asked(enter_limited: Enter) -> None:
    """OffsetCommit up to version 4; whatever offsets.retention.minutes says."""
    member = enter_limited()
    assert member.commit(TOPIC, 1, 4, retention_time_ms=100) is Code.NONE
    eventually(lambda: not member.committed(None))
    eventually(lambda: member.listed() == [])


def test_offsets_of_a_group_with_members_do_not_expire(enter_limited: Enter) -> None:
    """It joins without the id that a broker gives first: expiry may forget a group that waits."""
    member = enter_limited()
    member.lead(topics=(TOPIC,), version=3)
    assert member.commit(TOPIC, 1, 4, retention_time_ms=1) is Code.NONE
    other = enter_limited(None, member.group + "-simple")
    other.commit(TOPIC, 1, 4, retention_time_ms=1)
    eventually(lambda: not other.committed(None))
    assert list(member.committed(None)) == [(TOPIC, 0)]
    member.leave()
    eventually(lambda: not member.committed(None))


def test_restarts_in_every_state_lose_no_member(limited: Broker, enter_limited: Enter) -> None:
    """The broker is killed, and started again."""
    names = ("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "static")
    groups = {name: enter_limited().group + name for name in names}

    def make(name: str, instance: str | None = None) -> Member:
        return enter_limited(instance, groups[name])

    for name in names:
        keep(make(name))
    gone = make("Empty")
    gone.lead()
    gone.leave()
    stable = make("Stable")
    stable.lead()
    completing = make("CompletingRebalance")
    completing.lead()
    completing.join(protocols=OTHER_TOPIC)
    static = make("static", "one")
    static.lead()
    # Last: a member that does not join again in time is removed, and must be seen before that.
    waiting, newcomer = make("PreparingRebalance"), make("PreparingRebalance")
    waiting.lead()
    newcomer.join()
    newcomer.send_join()
    for name in names[:4]:
        make(name).await_state(name)
    limited.restart(clean=False)

    for old in (gone, stable, waiting, newcomer, completing, static):
        old.reconnect(limited.bootstrap)
    assert gone.heartbeat() is Code.UNKNOWN_MEMBER_ID
    assert stable.heartbeat() is Code.NONE
    assert stable.sync().assignment == stable.member_id.encode()
    assert waiting.heartbeat() is Code.NONE
    assert Code(newcomer.join().error_code) is Code.UNKNOWN_MEMBER_ID
    assert completing.heartbeat() is Code.ILLEGAL_GENERATION
    assert completing.join(protocols=RANGE).generation_id == 2
    assert static.heartbeat() is Code.NONE
    restarted = make("static", "one")
    joined = restarted.join()
    assert (joined.generation_id, joined.skip_assignment) == (1, True)
    assert static.heartbeat() is Code.FENCED_INSTANCE_ID
    gone.member_id = ""
    gone.enter()
    assert gone.generation_id == 3
