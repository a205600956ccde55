"""Who may commit offsets for a group, plainly and in a transaction (KIP-447)."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.groups.classic.group import GroupState
from coordinator.groups.classic.heartbeats import check_commit
from coordinator.groups.committing import (
    Committer,
    acceptable,
    check_committer,
    keep_alive,
)
from coordinator.groups.consumer.records import ResolvedRegex, epoch_record, regex_record
from coordinator.groups.deletion import EXPIRED_AT_ONCE, decide_deletion, decide_expiry
from coordinator.groups.offsets.committed import CommittedOffset, OffsetKey, OffsetRecord
from coordinator.groups.records import GroupRecord
from coordinator.groups.shard import GroupShard
from tests.coordinator.groups.conftest import RANGE
from wire.error_code import ErrorCode
from wire.errors import KafkaError

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
FENCED = ErrorCode.FENCED_INSTANCE_ID
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS

EMPTY, PREPARING, COMPLETING, STABLE = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
)

#: (who, state, plain commit, in a transaction). Member m, instance i, at the group's generation.
RULES: list[tuple[str, GroupState, ErrorCode, ErrorCode]] = [
    ("no member", EMPTY, NONE, NONE),
    ("no member", PREPARING, UNKNOWN, NONE),
    ("no member", COMPLETING, UNKNOWN, NONE),
    ("no member", STABLE, UNKNOWN, NONE),
    ("member", EMPTY, UNKNOWN, UNKNOWN),
    ("member", PREPARING, NONE, NONE),
    ("member", COMPLETING, REBALANCE, NONE),
    ("member", STABLE, NONE, NONE),
    ("older generation", EMPTY, UNKNOWN, UNKNOWN),
    ("older generation", PREPARING, ILLEGAL, ILLEGAL),
    ("older generation", COMPLETING, ILLEGAL, ILLEGAL),
    ("older generation", STABLE, ILLEGAL, ILLEGAL),
    ("stranger", EMPTY, UNKNOWN, UNKNOWN),
    ("stranger", STABLE, UNKNOWN, UNKNOWN),
    ("fenced", EMPTY, UNKNOWN, UNKNOWN),
    ("fenced", STABLE, FENCED, FENCED),
    ("other instance", STABLE, UNKNOWN, UNKNOWN),
    ("member without generation", EMPTY, NONE, NONE),
    ("member without generation", STABLE, ILLEGAL, ILLEGAL),
]


def in_state(driver: Any, state: GroupState) -> str:
    """Bring the group to `state`; return the id of its one member, instance i."""
    (member_id,) = driver.stable(1, group_instance_id="i") if state is not COMPLETING else ("",)
    if state is COMPLETING:
        member_id = driver.joined(driver.join(group_instance_id="i")).member_id
    elif state is PREPARING:
        driver.join()
    elif state is EMPTY:
        driver.leave(member_id, instance="i")
    assert driver.group.state is state
    return str(member_id)


@pytest.mark.parametrize(("who", "state", "plain", "transactional"), RULES)
def test_a_commit_is_taken_from_whom_the_group_knows(
    driver: Any, who: str, state: GroupState, plain: ErrorCode, transactional: ErrorCode
) -> None:
    member_id = in_state(driver, state)
    generation_id = driver.group.generation_id
    said: tuple[str, int, str | None] = {
        "no member": ("", -1, None),
        "member": (member_id, generation_id, "i"),
        "older generation": (member_id, generation_id - 1, "i"),
        "stranger": ("stranger", generation_id, None),
        "fenced": ("former", generation_id, "i"),
        "other instance": (member_id, generation_id, "other"),
        "member without generation": (member_id, -1, None),
    }[who]
    assert _code(driver, said, transactional=False) is plain
    assert _code(driver, said, transactional=True) is transactional


@pytest.mark.parametrize("transactional", [False, True])
def test_after_a_reload_the_last_stable_generation_commits_and_no_other(
    driver: Any, transactional: bool
) -> None:
    """Also where a later one was forming: no member has got an assignment of that."""
    leader, follower = driver.stable(2)
    generation_id = driver.group.generation_id
    newcomer = driver.join()
    driver.join(leader)
    driver.join(follower)
    unassigned = driver.joined(newcomer).member_id
    driver.reload()
    for said, code in (
        ((leader, generation_id, None), NONE),
        ((follower, generation_id, None), NONE),
        ((leader, generation_id - 1, None), ILLEGAL),
        ((leader, generation_id + 1, None), ILLEGAL),
        ((unassigned, generation_id + 1, None), UNKNOWN),
    ):
        assert _code(driver, said, transactional=transactional) is code, said


def _code(driver: Any, said: tuple[str, int, str | None], *, transactional: bool) -> ErrorCode:
    member_id, generation_id, instance = said
    try:
        check_commit(driver.group, member_id, generation_id, instance, transactional=transactional)
    except KafkaError as refusal:
        return refusal.code
    return NONE


@pytest.mark.parametrize(
    ("generation_id", "transactional", "knows", "code"),
    [
        (-1, False, False, NONE),
        (-1, True, False, NONE),
        (0, False, False, ILLEGAL),
        (5, False, True, ErrorCode.GROUP_ID_NOT_FOUND),
        (5, True, False, ILLEGAL),
        (5, True, True, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_group_that_does_not_exist_has_no_generations(
    driver: Any, generation_id: int, transactional: bool, knows: bool, code: ErrorCode
) -> None:
    shard = GroupShard(driver.limits)
    committer = Committer(group_id="group", member_id="m", generation_id=generation_id)
    accepted = acceptable("group", [("topic", 0, CommittedOffset(1))], 100)
    try:
        check_committer(
            shard,
            committer,
            accepted.records,
            transactional=transactional,
            knows_group_not_found=knows,
        )
    except KafkaError as refusal:
        assert refusal.code is code
    else:
        assert code is NONE


def test_a_commit_is_a_sign_of_life(driver: Any) -> None:
    (member_id,) = driver.stable(1)
    shard = GroupShard(driver.limits, groups={"group": driver.group})
    committer = Committer(
        group_id="group", member_id=member_id, generation_id=driver.group.generation_id
    )
    driver.advance(9_999)
    check_committer(shard, committer, (), transactional=False, knows_group_not_found=True)
    assert keep_alive(shard, committer, driver.now_ms) is not None
    driver.advance(9_999)
    assert member_id in driver.group.members


def test_a_group_with_offsets_alone_is_empty_and_can_be_deleted(driver: Any) -> None:
    shard = GroupShard(driver.limits)
    key = OffsetKey("simple", "topic", 0)
    shard.apply(OffsetRecord(key, CommittedOffset(1)), 0)
    assert shard.find("simple").state is EMPTY
    for position, record in enumerate(decide_deletion(shard, "simple")):
        shard.apply(record, position + 1)
    assert not shard.exists("simple")


def test_a_stranger_to_a_group_with_offsets_alone_hears_first_of_its_protocols(
    driver: Any,
) -> None:
    """As in Kafka, where that group is there, and one without offsets is not."""
    shard = GroupShard(driver.limits)
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        shard.joinable("simple", "stranger", 0)
    shard.apply(OffsetRecord(OffsetKey("simple", "topic", 0), CommittedOffset(1)), 0)
    driver.group = shard.joinable("simple", "stranger", 0)
    for protocols, code in (((), ErrorCode.INCONSISTENT_GROUP_PROTOCOL), (RANGE, UNKNOWN)):
        assert driver.joined(driver.join("stranger", protocols=protocols)).error_code is code
    shard.forget_if_unused(driver.group)
    assert shard.member_group_count == 0


def test_a_group_is_deleted_with_the_patterns_that_a_crash_has_left_of_its_members(
    driver: Any,
) -> None:
    """Its last members left by several batches, of which the last one was not written."""
    shard = GroupShard(driver.limits)
    found = ResolvedRegex(frozenset({"a"}), 1, 0)
    left = [epoch_record("group", 1, 0), regex_record("group", "a.*", found)]
    for offset, record in enumerate(left):
        shard.apply(record, offset)
    for offset, deleted in enumerate(decide_deletion(shard, "group"), len(left)):
        shard.apply(deleted, offset)
    assert not shard.exists("group")


def test_a_group_with_members_cannot_be_deleted(driver: Any) -> None:
    driver.stable(1)
    shard = GroupShard(driver.limits, groups={"group": driver.group})
    with pytest.raises(KafkaError) as refusal:
        decide_deletion(shard, "group")
    assert refusal.value.code is ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_was_never_there_cannot_be_deleted(driver: Any) -> None:
    with pytest.raises(KafkaError) as refusal:
        decide_deletion(GroupShard(driver.limits), "unknown")
    assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_goes_with_its_last_expired_offset(driver: Any) -> None:
    (member_id,) = driver.stable(1)
    shard = GroupShard(driver.limits, groups={"group": driver.group})
    key = OffsetKey("group", "topic", 0)
    shard.apply(OffsetRecord(key, CommittedOffset(1, committed_ms=0)), 0)
    assert decide_expiry(shard, "group", "topic", 10**9, 1_000) == []
    driver.leave(member_id)
    assert decide_expiry(shard, "group", "topic", driver.now_ms + 999, 1_000) == []
    expired = decide_expiry(shard, "group", "topic", driver.now_ms + 1_000, 1_000)
    assert expired == [OffsetRecord(key, None), GroupRecord("group", None)]
    for position, record in enumerate(expired):
        shard.apply(record, position + 1)
    assert not shard.exists("group")


class UnwalkedTopics(dict[str, Any]):
    """The topics of a group, of which each is looked up by its name."""

    def values(self) -> Any:
        raise AssertionError("all topics of the group are gone through")

    items = __iter__ = values


def test_an_expiry_looks_at_its_topic_alone(driver: Any) -> None:
    shard = GroupShard(driver.limits)
    for topic in ("one", "other"):
        shard.apply(OffsetRecord(OffsetKey("group", topic, 0), CommittedOffset(1)), 0)
    committed = shard.offsets._committed
    committed["group"] = UnwalkedTopics(committed["group"])
    assert len(decide_expiry(shard, "group", "one", 10**15, 1_000)) == 1


def test_few_offsets_of_a_group_expire_in_one_step(driver: Any) -> None:
    shard = GroupShard(driver.limits)
    count = 2 * EXPIRED_AT_ONCE + 1
    for partition in range(count):
        key = OffsetKey("group", "topic", partition)
        shard.apply(OffsetRecord(key, CommittedOffset(1, committed_ms=0)), partition)
    steps = []
    while expired := decide_expiry(shard, "group", "topic", 10**9, 1_000):
        steps.append(len(expired))
        for record in expired:
            shard.apply(record, count)
    assert steps == [EXPIRED_AT_ONCE, EXPIRED_AT_ONCE, 1]
    assert not shard.exists("group")
