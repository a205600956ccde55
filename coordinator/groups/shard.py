"""One shard of the group coordinator: the groups of a partition of `__consumer_offsets`.

Owns what groups and offsets have in common: the log. Every change is a record; `apply` folds a
record that is in the log, live and on replay, so both end in the same state. Of a classic group
the record is the last stable generation: what is in the making lives in memory alone, and ends
with the broker. Of a consumer group everything is in records but its members' deadlines.

The caller appends the records of a decision, applies each with its offset in the log, without an
await in between, and answers when they are durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.groups.classic.group import ClassicGroup, GroupLimits, GroupState
from coordinator.groups.classic.heartbeats import check_commit, keep_alive
from coordinator.groups.classic.records import apply, resume
from coordinator.groups.consumer import membership
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.records import ConsumerGroupRecord, group_tombstones
from coordinator.groups.offsets.committed import CommittedOffset, OffsetKey, OffsetRecord
from coordinator.groups.offsets.store import GroupOffsets
from coordinator.groups.records import GroupRecord, ShardRecord
from wire.error_code import ErrorCode
from wire.errors import KafkaError


class Committer(NamedTuple):
    """Who commits offsets, as the request has it. Generation -1: no member of anything."""

    group_id: str
    member_id: str = ""
    generation_id: int = -1
    group_instance_id: str | None = None


@dataclass(slots=True)
class GroupShard:
    """The groups of one shard, by id, and their offsets. An id is of one kind of group alone."""

    limits: GroupLimits
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    consumer_groups: dict[str, ConsumerGroup] = field(default_factory=dict)
    offsets: GroupOffsets = field(default_factory=GroupOffsets)

    # --- groups

    def exists(self, group_id: str) -> bool:
        """Whether anything is known of the group: members, a generation, or offsets."""
        return (
            group_id in self.groups
            or group_id in self.consumer_groups
            or self.offsets.has_group(group_id)
        )

    @property
    def member_group_count(self) -> int:
        """How many groups have members, or had some: those that are not offsets alone."""
        return len(self.groups) + len(self.consumer_groups)

    def group_ids(self) -> set[str]:
        """Return every group of which anything is known."""
        return {*self.groups, *self.consumer_groups, *self.offsets.groups()}

    def find_consumer_group(self, group_id: str) -> ConsumerGroup:
        """Return the group. Raises GROUP_ID_NOT_FOUND, also where it is a classic one."""
        group = self.consumer_groups.get(group_id)
        if group is None:
            reason = "is not a consumer group" if self.exists(group_id) else "not found"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
        return group

    def find(self, group_id: str) -> ClassicGroup:
        """Return the classic group; one that has only offsets is empty.

        Raises GROUP_ID_NOT_FOUND, also where it is a consumer group.
        """
        if group_id in self.consumer_groups:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group."
            )
        group = self.groups.get(group_id)
        if group is None and not self.offsets.has_group(group_id):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group or ClassicGroup(group_id, self.limits)

    def member_group(self, group_id: str) -> ClassicGroup:
        """Return the group that a member claims to be in. Raises UNKNOWN_MEMBER_ID."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no members")
        return group

    def joinable(self, group_id: str, member_id: str, now_ms: int) -> ClassicGroup:
        """Return the group to join, made if it is missing: for whoever has no member id yet.

        Call `forget_if_unused` after the join, also when it was refused.
        """
        group = self.groups.get(group_id)
        if group is None:
            if member_id:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no member {member_id}"
                )
            group = self.groups[group_id] = ClassicGroup(group_id, self.limits, now_ms)
        return group

    def forget_if_unused(self, group: ClassicGroup) -> None:
        """Let go of a group that never had a generation and has nobody in it."""
        if group.is_forgettable:
            self.groups.pop(group.group_id, None)

    # --- offsets

    def decide_commit(
        self,
        committer: Committer,
        offsets: Sequence[tuple[str, int, CommittedOffset]],
        now_ms: int,
        *,
        transactional: bool = False,
        knows_group_not_found: bool = False,
    ) -> list[OffsetRecord]:
        """Return the records that commit (topic, partition, offset), or refuse.

        ILLEGAL_GENERATION where a member commits for a group that does not exist, or
        GROUP_ID_NOT_FOUND for who `knows_group_not_found` (OffsetCommit v9+); else as
        `heartbeats.check_commit`. A commit by a member restarts its session, as a heartbeat does.
        """
        group_id = committer.group_id
        consumer_group = self.consumer_groups.get(group_id)
        if consumer_group is not None:
            membership.check_commit(
                consumer_group,
                committer.member_id,
                committer.generation_id,
                committer.group_instance_id,
                [(committed.topic_id, partition) for _, partition, committed in offsets],
                transactional=transactional,
                knows_member_epochs=knows_group_not_found,
            )
        elif self.exists(group_id):
            group = self.find(group_id)
            check_commit(
                group,
                committer.member_id,
                committer.generation_id,
                committer.group_instance_id,
                transactional=transactional,
            )
            if not transactional:
                keep_alive(group, committer.member_id, now_ms)
        elif committer.generation_id >= 0:
            code = (
                ErrorCode.GROUP_ID_NOT_FOUND
                if knows_group_not_found and not transactional
                else ErrorCode.ILLEGAL_GENERATION
            )
            raise KafkaError(code, f"group {group_id} does not exist")
        return [
            OffsetRecord(OffsetKey(group_id, topic, partition), committed)
            for topic, partition, committed in offsets
        ]

    # --- deletion

    def decide_delete(self, group_id: str) -> list[ShardRecord]:
        """Return the records that delete a group with all it has committed or pending.

        Refuses with GROUP_ID_NOT_FOUND, and NON_EMPTY_GROUP while it has members.
        """
        consumer_group = self.consumer_groups.get(group_id)
        is_empty = (
            not consumer_group.members
            if consumer_group is not None
            else self.find(group_id).state is GroupState.EMPTY
        )
        if not is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} is not empty.")
        return [*self.offsets.deletion_of_group(group_id), *self.group_deletion(group_id)]

    def group_deletion(self, group_id: str) -> list[ShardRecord]:
        """Return what forgets a group without members, of either kind, but not its offsets."""
        if group_id in self.consumer_groups:
            return list(group_tombstones(group_id))
        return [GroupRecord(group_id, None)]

    def decide_expiry(self, group_id: str, now_ms: int, retention_ms: int) -> list[ShardRecord]:
        """Return deletions of offsets nobody used for `retention_ms`, and of the group with them.

        Only of a group without members; one whose last offset goes is deleted as a whole.
        """
        consumer_group = self.consumer_groups.get(group_id)
        if consumer_group is not None and consumer_group.members:
            return []
        group = self.groups.get(group_id)
        if group is not None and (group.state is not GroupState.EMPTY or group.pending_members):
            return []
        unused_since_ms = -1 if group is None else group.state_changed_ms
        expired: list[ShardRecord] = list(
            self.offsets.deletion_of_expired(group_id, now_ms, retention_ms, unused_since_ms)
        )
        left = sum(1 for _ in self.offsets.of_group(group_id)) - len(expired)
        is_known = group is not None or consumer_group is not None
        if is_known and not left and not self.offsets.pending.holds_any(group_id):
            expired += self.group_deletion(group_id)
        return expired

    # --- the fold

    def apply(self, record: ShardRecord, log_offset: int) -> None:
        """Fold a record that is in the log at `log_offset`: just appended, or read at the start."""
        if isinstance(record, OffsetRecord):
            self.offsets.on_record(record, log_offset)
        elif isinstance(record, ConsumerGroupRecord):
            self._apply_to_consumer_group(record)
        elif record.value is None:
            group = self.groups.pop(record.group_id, None)
            if group is not None:
                group.transition(GroupState.DEAD, group.state_changed_ms)
        else:
            group = self.groups.get(record.group_id)
            if group is None:
                group = self.groups[record.group_id] = ClassicGroup(record.group_id, self.limits)
            apply(group, record.value)

    def _apply_to_consumer_group(self, record: ConsumerGroupRecord) -> None:
        group_id = record.group_id
        group = self.consumer_groups.get(group_id)
        if group is None:
            group = self.consumer_groups[group_id] = ConsumerGroup(group_id)
        group.apply(record)
        if group.is_gone:
            del self.consumer_groups[group_id]

    def apply_pending(
        self, record: OffsetRecord, log_offset: int, producer_id: int, producer_epoch: int
    ) -> None:
        """Fold a record of a transactional batch, live or from the log."""
        self.offsets.on_pending(record, log_offset, producer_id, producer_epoch)

    def apply_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Fold a transaction's marker, live or from the log."""
        self.offsets.on_marker(producer_id, producer_epoch, commit=commit)

    def resume(self, now_ms: int) -> None:
        """The log is read to its end: sessions begin again, whole."""
        for group in self.groups.values():
            resume(group, now_ms)
