"""Committed offsets, frame by frame: every version of OffsetCommit and OffsetFetch."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from compat_tests.admin import delete_topic
from compat_tests.brokers import Broker
from compat_tests.conftest import Enter, MakeName, MakeTopic
from compat_tests.group_frames import Code, Member, pair
from compat_tests.offsets import staged
from compat_tests.waiting import eventually

NOBODYS_ID = UUID(int=77)
NOTHING = (-1, -1, "", Code.NONE)


@pytest.mark.parametrize("version", range(2, 11))
def test_what_is_committed_is_fetched_in_every_version(
    enter: Enter, topic: MakeTopic, version: int
) -> None:
    member, orders = enter(), topic("orders", 2)
    orders_id = member.topic_id(orders)
    epoch = 3 if version >= 6 else -1
    named = orders_id if version >= 10 else orders
    code = member.commit(named, 7, version, leader_epoch=3, metadata="here", partition=1)
    assert code is Code.NONE
    for asked in range(1, 11):
        name = orders_id if asked >= 10 else orders
        expected = (7, epoch if asked >= 5 else -1, "here", Code.NONE)
        assert member.committed([(name, [0, 1, 9])], asked) == {
            (name, 0): NOTHING,
            (name, 1): expected,
            (name, 9): NOTHING,
        }
        if asked >= 2:
            assert member.committed(None, asked) == {(name, 1): expected}


def test_commits_that_name_nothing_are_refused(enter: Enter, topic: MakeTopic) -> None:
    member, orders = enter(), topic("orders")
    orders_id = member.topic_id(orders)
    assert member.commit("never-made", 1) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert member.commit(orders, 1, partition=9) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert member.commit(orders_id, 1, 10, partition=9) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert member.commit(NOBODYS_ID, 1, 10) is Code.UNKNOWN_TOPIC_ID
    assert member.committed([(NOBODYS_ID, [0])], 10) == {
        (NOBODYS_ID, 0): (-1, -1, "", Code.UNKNOWN_TOPIC_ID)
    }
    assert member.committed(None) == {}


def test_a_commit_without_metadata_has_empty_metadata(enter: Enter, topic: MakeTopic) -> None:
    member, orders = enter(), topic("orders")
    assert member.commit(orders, 1, metadata=None) is Code.NONE
    assert member.committed([(orders, [0])]) == {(orders, 0): (1, -1, "", Code.NONE)}


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ("x" * 4096, Code.NONE),
        ("x" * 4097, Code.OFFSET_METADATA_TOO_LARGE),
        ("é" * 4096, Code.NONE),
        ("\U0001f600" * 2048, Code.NONE),
        ("\U0001f600" * 2049, Code.OFFSET_METADATA_TOO_LARGE),
    ],
    ids=["4096", "4097", "two bytes each", "four bytes each", "more of these"],
)
def test_metadata_is_counted_as_java_counts_it(
    enter: Enter, topic: MakeTopic, metadata: str, code: Code
) -> None:
    member, orders = enter(), topic("orders")
    assert member.commit(orders, 1, metadata=metadata) is code
    kept = (1, -1, metadata, Code.NONE) if code is Code.NONE else NOTHING
    assert member.committed([(orders, [0])]) == {(orders, 0): kept}


@pytest.mark.one_node("a client asks each coordinator for its own groups")
def test_many_groups_are_fetched_at_once(enter: Enter, topic: MakeTopic, name: MakeName) -> None:
    orders = topic("orders", 2)
    one, two, empty = (enter(None, name("group")) for _ in range(3))
    one.commit(orders, 1)
    two.commit(orders, 2, partition=1)
    asked = [(one.group, None), (two.group, [(orders, [1])]), (empty.group, None)]
    assert one.committed_of(asked) == {
        one.group: {(orders, 0): 1},
        two.group: {(orders, 1): 2},
        empty.group: {},
    }


def test_a_group_that_only_commits_is_listed_and_empty(enter: Enter, topic: MakeTopic) -> None:
    member = enter()
    assert member.commit(topic("orders"), 1) is Code.NONE
    assert member.listed() == [("", "Empty", "classic")]
    assert member.describe().group_state == "Empty"
    assert member.delete_group() is Code.NONE
    assert member.committed(None) == {}


@pytest.mark.parametrize("version", [2, 8, 9])
def test_commits_of_members_and_of_others(enter: Enter, topic: MakeTopic, version: int) -> None:
    orders = topic("orders")
    stranger = enter()
    stranger.generation_id, stranger.member_id = 1, "m"
    missing = Code.GROUP_ID_NOT_FOUND if version >= 9 else Code.ILLEGAL_GENERATION
    assert stranger.commit(orders, 1, version) is missing
    leader, follower = pair(enter)
    assert leader.commit(orders, 1, version) is Code.NONE
    assert stranger.commit(orders, 2, version) is Code.UNKNOWN_MEMBER_ID
    stranger.generation_id, stranger.member_id = -1, ""
    assert stranger.commit(orders, 3, version) is Code.UNKNOWN_MEMBER_ID
    follower.generation_id -= 1
    assert follower.commit(orders, 4, version) is Code.ILLEGAL_GENERATION
    assert stranger.committed([(orders, [0])])[orders, 0][0] == 1
    follower.generation_id += 1
    leader.send_join()
    follower.await_state("PreparingRebalance")
    assert follower.commit(orders, 5, version) is Code.NONE
    follower.join()
    leader.heard()
    assert follower.commit(orders, 6, version) is Code.REBALANCE_IN_PROGRESS
    assert stranger.committed([(orders, [0])])[orders, 0][0] == 5


def test_a_replaced_static_member_commits_no_more(enter: Enter, topic: MakeTopic) -> None:
    orders = topic("orders")
    _, follower = pair(enter, "one", "two")
    restarted = enter("two")
    restarted.join()
    assert follower.commit(orders, 1) is Code.FENCED_INSTANCE_ID
    assert restarted.commit(orders, 2) is Code.NONE


def test_what_a_member_reads_keeps_its_offsets(enter: Enter, topic: MakeTopic) -> None:
    orders, returns = topic("orders"), topic("returns")
    member = enter()
    member.lead(topics=(orders,))
    for each in (orders, returns):
        assert member.commit(each, 1) is Code.NONE
    assert member.delete_offset(orders) is Code.GROUP_SUBSCRIBED_TO_TOPIC
    assert member.delete_offset(returns) is Code.NONE
    assert list(member.committed(None)) == [(orders, 0)]
    member.leave()
    assert member.delete_offset(orders) is Code.NONE
    assert member.delete_offset(orders, 9) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert member.committed(None) == {}


def test_a_deleted_topic_takes_its_offsets_along(
    broker: Broker, enter: Enter, topic: MakeTopic
) -> None:
    orders, returns = topic("orders"), topic("returns")
    member = enter()
    member.commit(orders, 1)
    member.commit(returns, 2)
    delete_topic(broker.bootstrap, orders)
    eventually(lambda: member.committed([(orders, [0])])[orders, 0][0] == -1)
    assert list(member.committed(None)) == [(returns, 0)]


def test_a_deleted_topic_takes_along_what_a_transaction_would_commit(
    broker: Broker, enter: Enter, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    member = enter()
    end = _pending(broker, member, orders, name("txn"))
    assert member.committed([(orders, [0])])[orders, 0] == NOTHING
    delete_topic(broker.bootstrap, orders)
    eventually(lambda: _stable_code(member, orders) is Code.NONE)
    end(True)
    assert member.committed([(orders, [0])]) == {(orders, 0): NOTHING}


def test_a_deleted_offset_does_not_come_back_with_its_transaction(
    broker: Broker, enter: Enter, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    member = enter()
    end = _pending(broker, member, orders, name("txn"))
    assert member.delete_offset(orders) is Code.NONE
    assert _stable_code(member, orders) is Code.NONE
    end(True)
    assert member.committed([(orders, [0])]) == {(orders, 0): NOTHING}


def _pending(
    broker: Broker, member: Member, topic: str, transactional_id: str
) -> Callable[[bool], None]:
    """Commit an offset of the member's group in a transaction that is open still; return what ends
    it (True commits)."""
    end = staged(broker.bootstrap, topic, member.group, transactional_id)
    assert _stable_code(member, topic) is Code.UNSTABLE_OFFSET_COMMIT
    return end


def _stable_code(member: Member, topic: str) -> Code:
    return member.committed([(topic, [0])], require_stable=True)[topic, 0][3]
