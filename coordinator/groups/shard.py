"""One shard of the group coordinator: the groups of a partition of `__consumer_offsets`.

Groups and offsets share one log. `apply` folds each of its records, live and in replay alike, so
that both end in the same state. Two things are in no record and end with the broker: a classic
generation that is still forming, and the soft state of consumer groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from coordinator.groups.classic.group import (
    ClassicGroup,
    GroupLimits,
    GroupState,
)
from coordinator.groups.classic.records import apply, resume
from coordinator.groups.consumer.group import ConsumerGroup, Draft
from coordinator.groups.consumer.member import JOINING
from coordinator.groups.consumer.migration import decide_upgrade
from coordinator.groups.consumer.records import ConsumerGroupRecord
from coordinator.groups.consumer.requests import ConsumerLimits, HeartbeatRequest
from coordinator.groups.consumer.soft_state import SoftState
from coordinator.groups.consumer.subscription import TopicImage
from coordinator.groups.member_room import MemberAccount
from coordinator.groups.offsets.committed import OffsetRecord
from coordinator.groups.offsets.store import GroupOffsets
from coordinator.groups.records import GroupRecord, ShardRecord
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.internal.consumer_group_member_metadata import ConsumerGroupMemberMetadataKey

#: The longest id of a new group, in UTF-8. It takes up to four times as much in memory.
ID_BYTES_MAX = 1024


@dataclass(slots=True)
class GroupShard:
    """The groups of one shard, by id, and their offsets. An id is of one kind of group alone."""

    limits: GroupLimits
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    consumer_groups: dict[str, ConsumerGroup] = field(default_factory=dict)
    #: By the id of each consumer group: what of the group is not in the log.
    soft_states: dict[str, SoftState] = field(default_factory=dict)
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    #: What the members of all groups take.
    members: MemberAccount = field(default_factory=MemberAccount)

    # --- questions

    def exists(self, group_id: str) -> bool:
        """Return whether the shard knows anything of the group: members, a generation, offsets."""
        return (
            group_id in self.groups
            or group_id in self.consumer_groups
            or self.offsets.has_group(group_id)
        )

    @property
    def member_group_count(self) -> int:
        """How many groups are more than offsets: they have members, or have had some."""
        return len(self.groups) + len(self.consumer_groups)

    def group_ids(self) -> Iterator[str]:
        """Yield the ids of all groups of which the shard knows anything, each once.

        They are those of the moment when the first one is asked for: the shard may change later.
        """
        # Only copied in one step, neither sorted nor made a set: there may be a hundred thousand.
        with_offsets = [*self.offsets.groups(), *self.offsets.pending.groups]
        seen: set[str] = set()
        for group_id in [*self.groups, *self.consumer_groups, *with_offsets]:
            if group_id not in seen:
                seen.add(group_id)
                yield group_id

    def find_consumer_group(self, group_id: str) -> ConsumerGroup:
        """Return the consumer group. Raises GROUP_ID_NOT_FOUND, also for a classic group."""
        group = self.consumer_groups.get(group_id)
        if group is None:
            reason = "is not a consumer group" if self.exists(group_id) else "not found"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
        return group

    def soft_state(self, group_id: str) -> SoftState:
        """Return the soft state of a consumer group; an empty one for a group not made yet."""
        return self.soft_states.get(group_id) or SoftState()

    def find(self, group_id: str) -> ClassicGroup:
        """Return the classic group; one that has only offsets is empty.

        Raises GROUP_ID_NOT_FOUND, also for a consumer group.
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
        """Return the classic group that a member claims to be in. Raises UNKNOWN_MEMBER_ID."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no members")
        return group

    def draft(self, request: HeartbeatRequest, topics: TopicImage, limits: ConsumerLimits) -> Draft:
        """Return a draft of the consumer group that a heartbeat is for; a first join makes one.

        A classic group with members is upgraded as `decide_upgrade` says. Refuses with
        GROUP_ID_NOT_FOUND.
        """
        group_id = request.group_id
        group = self.consumer_groups.get(group_id)
        if group is not None:
            return Draft(group)
        if request.member_epoch != JOINING:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {group_id} is not a consumer group."
                if self.exists(group_id)
                else f"Consumer group {group_id} not found.",
            )
        classic = self.groups.get(group_id)
        # An empty group has no members to take over, so it is replaced rather than upgraded.
        if classic is None or classic.state is GroupState.EMPTY:
            return Draft(ConsumerGroup(group_id), is_new=True)
        return decide_upgrade(classic, topics, limits)

    def of_one_kind(
        self, group_id: str, records: Sequence[ConsumerGroupRecord]
    ) -> list[ShardRecord]:
        """Return the records of a consumer group, after the deletion of a classic one of that id.

        The deletion comes first, so that in replay too an id is of one kind of group at a time.
        """
        deletion = [GroupRecord(group_id, None)] if group_id in self.groups else []
        return [*deletion, *records]

    # --- classic groups in memory alone

    def joinable(self, group_id: str, member_id: str, now_ms: int) -> ClassicGroup:
        """Return the classic group to join; a member without an id may make it.

        A group that has offsets alone is there already, without members. Raises UNKNOWN_MEMBER_ID.
        Call `forget_if_unused` after the join, also when it was refused.
        """
        group = self.groups.get(group_id)
        if group is None:
            if member_id and not self.offsets.has_group(group_id):
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no member {member_id}"
                )
            group = self.groups[group_id] = ClassicGroup(group_id, self.limits, now_ms)
            group.account_in(self.members)
        return group

    def take_over(self, group: ClassicGroup) -> None:
        """Take a classic group whose record is about to be applied: it was a consumer group."""
        assert group.group_id not in self.groups
        self.groups[group.group_id] = group
        group.account_in(self.members)

    def forget_if_unused(self, group: ClassicGroup) -> None:
        """Forget a group that has never had a generation, has no members and expects none."""
        if group.is_forgettable:
            self.groups.pop(group.group_id, None)

    # --- the fold

    def apply(self, record: ShardRecord, offset: int) -> None:
        """Fold a record at `offset` of the log: just appended, or read at the start."""
        if isinstance(record, OffsetRecord):
            self.offsets.on_record(record, offset)
        elif isinstance(record, ConsumerGroupRecord):
            self._apply_to_consumer_group(record, offset)
        elif record.value is None:
            group = self.groups.pop(record.group_id, None)
            if group is not None:
                group.account_in(MemberAccount())
                # Steps that hold the object (an upgrade does) see that it is deleted.
                group.transition(GroupState.DEAD, group.state_changed_ms)
        else:
            group = self.groups.get(record.group_id)
            if group is None:
                group = self.groups[record.group_id] = ClassicGroup(record.group_id, self.limits)
                group.account_in(self.members)
            apply(group, record.value)

    def _apply_to_consumer_group(self, record: ConsumerGroupRecord, offset: int) -> None:
        group_id = record.group_id
        group = self.consumer_groups.get(group_id)
        if group is None:
            group = self.consumer_groups[group_id] = ConsumerGroup(group_id)
            self.soft_states[group_id] = SoftState()
        before = group.member_bytes
        group.apply(record)
        self.members.size_bytes += group.member_bytes - before
        soft = self.soft_states[group_id]
        soft.rests_on = offset + 1
        if isinstance(record.key, ConsumerGroupMemberMetadataKey) and record.value is None:
            soft.forget(record.key.member_id)
        # All tombstones of the group are applied, so the log has nothing of the group any more.
        if group.is_gone:
            self.members.size_bytes -= group.member_bytes
            del self.consumer_groups[group_id], self.soft_states[group_id]

    def apply_pending(
        self, record: ShardRecord, offset: int, producer_id: int, producer_epoch: int
    ) -> None:
        """Fold a record of a transactional batch, live or from the log."""
        if isinstance(record, OffsetRecord) and record.value is not None:
            self.offsets.on_pending(record, offset, producer_id, producer_epoch)
        else:
            # Neither broker writes groups, or deletes offsets, in transactions; a foreign log may
            # hold anything.
            self.apply(record, offset)

    def apply_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Fold a transaction's marker, live or from the log."""
        self.offsets.on_marker(producer_id, producer_epoch, commit=commit)

    def resume(self, now_ms: int) -> None:
        """Begin full sessions of all classic members. Call it when the log is read to its end."""
        for group in self.groups.values():
            resume(group, now_ms)


def check_group_count(
    home: GroupShard, shards: Collection[GroupShard], group_id: str, groups_max: int
) -> None:
    """Raise POLICY_VIOLATION where a new group in `home` would be one more than `max.groups`, and
    INVALID_GROUP_ID where its id is too long.

    Without the limits a client could exhaust the broker's memory with ever new groups. A
    `groups_max` of 0 means no limit of their number.
    """
    if home.exists(group_id):
        return
    if len(group_id) > ID_BYTES_MAX or len(group_id.encode()) > ID_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_GROUP_ID,
            f"the id of the new group {group_id[:80]!r} is longer than {ID_BYTES_MAX} bytes",
        )
    if not groups_max:
        return
    with_members = sum(shard.member_group_count for shard in shards)
    with_offsets = sum(shard.offsets.group_count for shard in shards)
    # A marker, which cannot be refused, will give them offsets.
    in_transactions = sum(len(shard.offsets.pending.groups) for shard in shards)
    if max(with_members, with_offsets, in_transactions) >= groups_max:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"there are {groups_max} groups already (max.groups), {group_id} would be one more",
        )
