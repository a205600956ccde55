"""Who may commit and fetch offsets of a consumer group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.groups.consumer.membership import check_commit, check_fetch
from tests.coordinator.groups.consumer_world import World
from wire.error_code import ErrorCode
from wire.errors import KafkaError

NONE, STALE = ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH
UNKNOWN, ILLEGAL = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """`a` at epoch 3 has two partitions since 2, `b` two since 3; `c` speaks the classic one."""
    world = World()
    world.join("a", "orders")
    world.join("b", "orders")
    told = world.heartbeat("a", 2)
    world.heartbeat("a", 2, owned=told.assignment)
    world.heartbeat("b", 3)
    world.join_classic("c", "audit")
    yield world


def code(
    world: World, member_id: str, epoch: int, *, partition_of: str = "", **fields: bool
) -> ErrorCode:
    group = world.group
    held = group.members[partition_of or member_id].assigned if member_id in group.members else {}
    places = [(topic_id, p) for topic_id, partitions in held.items() for p in partitions][:1]
    said = {"transactional": False, "knows_member_epochs": True, **fields}
    try:
        check_commit(group, member_id, epoch, None, places, **said)
    except KafkaError as refusal:
        return refusal.code
    return NONE


@pytest.mark.parametrize(
    ("member_id", "epoch", "plain", "transactional"),
    [
        ("a", 3, NONE, NONE),
        ("a", 2, NONE, NONE),  # it has had the partition since then
        ("a", 1, STALE, ILLEGAL),
        ("a", 4, STALE, ILLEGAL),
        ("b", 2, STALE, ILLEGAL),
        ("c", 4, NONE, NONE),
        ("c", 3, ILLEGAL, ILLEGAL),
        ("c", 5, ILLEGAL, ILLEGAL),
        ("unknown", 3, UNKNOWN, UNKNOWN),
        ("", -1, UNKNOWN, NONE),  # says nothing of itself
        ("a", -1, STALE, ILLEGAL),
    ],
)
def test_members_commit_with_their_epoch(
    world: World, member_id: str, epoch: int, plain: ErrorCode, transactional: ErrorCode
) -> None:
    assert code(world, member_id, epoch) is plain
    old = code(world, member_id, epoch, transactional=True, knows_member_epochs=False)
    assert old is transactional
    # TxnOffsetCommit v6 (KIP-1319): the same codes as without a transaction.
    newer = NONE if transactional is NONE else plain
    assert code(world, member_id, epoch, transactional=True) is newer


def test_an_older_epoch_is_not_good_for_others_partitions(world: World) -> None:
    assert code(world, "a", 2, partition_of="b") is STALE


def test_requests_that_know_no_member_epochs_are_for_classic_members(world: World) -> None:
    assert code(world, "a", 3, knows_member_epochs=False) is ErrorCode.UNSUPPORTED_VERSION
    assert code(world, "c", 4, knows_member_epochs=False) is NONE


def test_anyone_commits_for_an_empty_group() -> None:
    world = World()
    world.join("a", "orders")
    world.leave("a")
    assert code(world, "", -1) is NONE
    assert code(world, "a", 2) is UNKNOWN


@pytest.mark.parametrize(
    ("member_id", "epoch", "expected"),
    [
        (None, -1, NONE),
        ("a", 3, NONE),
        ("a", 2, STALE),
        ("c", 3, ILLEGAL),
        ("unknown", 3, UNKNOWN),
        (None, 3, UNKNOWN),
    ],
)
def test_members_fetch_with_their_epoch(
    world: World, member_id: str | None, epoch: int, expected: ErrorCode
) -> None:
    try:
        check_fetch(world.group, member_id, epoch)
        found = NONE
    except KafkaError as refusal:
        found = refusal.code
    assert found is expected
