"""OffsetCommit, TxnOffsetCommit and OffsetFetch: which members may commit and read offsets.

The offsets themselves know no members (`offsets`), and the groups know no offsets; here they meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coordinator.decision import Decision
from coordinator.groups.classic import heartbeats
from coordinator.groups.consumer import membership
from coordinator.groups.offsets.committed import (
    CommittedOffset,
    OffsetKey,
    OffsetRecord,
    metadata_code,
)
from coordinator.groups.shard import GroupShard
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: One offset to commit, for (topic, partition).
Commit = tuple[str, int, CommittedOffset]
#: The answer has a code for each commit, in order.
CommitDecision = Decision[OffsetRecord, list[ErrorCode]]


class Committer(NamedTuple):
    """The sender of a commit, as the request names it. The generation is -1 for a non-member.

    Members of consumer groups send their member epoch in place of a generation.
    """

    group_id: str
    member_id: str = ""
    generation_id: int = -1
    group_instance_id: str | None = None


def acceptable(group_id: str, commits: Sequence[Commit], metadata_units_max: int) -> CommitDecision:
    """Return the records of the commits that may be accepted, and a code for each commit.

    Asks no state: the caller may be in a thread. A commit with too much metadata is refused alone:
    its code is OFFSET_METADATA_TOO_LARGE.
    """
    codes = [
        metadata_code(metadata, metadata_units_max)
        if (metadata := committed.metadata)
        else ErrorCode.NONE
        for _, _, committed in commits
    ]
    # Not by the constructors, which run as Python code: there may be ten thousand.
    made = tuple.__new__
    records = tuple(
        [
            made(OffsetRecord, (made(OffsetKey, (group_id, topic, partition)), committed))
            for (topic, partition, committed), code in zip(commits, codes, strict=True)
            if code is ErrorCode.NONE
        ]
    )
    return Decision(records=records, answer=codes)


def check_committer(
    shard: GroupShard,
    committer: Committer,
    records: Sequence[OffsetRecord],
    *,
    transactional: bool,
    knows_group_not_found: bool,
) -> None:
    """Return if the committer may make these commits, else raise.

    Refuses all of them as `check_commit` of the group's protocol does: in a transaction too a
    zombie is fenced by its generation (KIP-447). Where a member names a group that does not exist,
    the refusal is GROUP_ID_NOT_FOUND for clients that know this code (`knows_group_not_found`,
    OffsetCommit v9+, TxnOffsetCommit v6+), ILLEGAL_GENERATION for others.
    """
    group_id, member_id, generation_id, group_instance_id = committer
    consumer_group = shard.consumer_groups.get(group_id)
    if consumer_group is not None:
        membership.check_commit(
            consumer_group,
            member_id,
            generation_id,
            group_instance_id,
            # Looked at for a stale epoch alone.
            ((r.value.topic_id, r.key.partition) for r in records if r.value is not None),
            transactional=transactional,
            # The same version of a request brought both this code and member epochs.
            knows_member_epochs=knows_group_not_found,
        )
        return
    group = shard.groups.get(group_id)
    if group is None:
        # A group that has only offsets has no members: any consumer that is no member may commit.
        if generation_id < 0:
            return
        if not shard.exists(group_id):
            code = ErrorCode.ILLEGAL_GENERATION
            if knows_group_not_found:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            raise KafkaError(code, f"group {group_id} does not exist")
        group = shard.find(group_id)
    heartbeats.check_commit(
        group, member_id, generation_id, group_instance_id, transactional=transactional
    )


def keep_alive(shard: GroupShard, committer: Committer, now_ms: int) -> int | None:
    """Restart the session of a classic member that commits; return the group's next deadline."""
    group = shard.groups.get(committer.group_id)
    if group is None:
        return None
    heartbeats.keep_alive(group, committer.member_id, now_ms)
    return group.deadline_ms


def check_fetch(shard: GroupShard, group_id: str, member_id: str | None, member_epoch: int) -> None:
    """Refuse to show the offsets of a consumer group to a sender that is no current member of it.

    Raises as `membership.check_fetch`. Any client may read the offsets of a classic group.
    """
    group = shard.consumer_groups.get(group_id)
    if group is not None:
        membership.check_fetch(group, member_id, member_epoch)
