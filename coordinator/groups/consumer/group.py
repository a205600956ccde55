"""A consumer group as its records describe it: members, target assignments, current assignments.

The group is a fold over its records. `apply` takes one record, live and in replay alike, and
nothing else changes a group. `soft_state` has what the log does not hold: sessions, and the topics
that were last looked at.

Invariant: `owners` names one member for each owned partition: the member that reads the partition,
or that has not given it back yet. The next owner waits until `owners` no longer names the earlier
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import cast
from uuid import UUID

from coordinator.groups.consumer import records
from coordinator.groups.consumer.member import Assigned, Member, Target
from coordinator.groups.consumer.records import ConsumerGroupRecord, ResolvedRegex
from coordinator.groups.member_room import texts_bytes
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.internal.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from wire.internal.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from wire.internal.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from wire.internal.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from wire.internal.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
)
from wire.internal.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

_NOTHING: Target = {}
#: The epoch of a group without a record, and of its assignment.
FIRST_EPOCH = 1


class ConsumerGroupState(Enum):
    """The value is the name that ConsumerGroupDescribe and ListGroups show."""

    EMPTY = "Empty"  # no members; perhaps offsets
    ASSIGNING = "Assigning"  # the target assignment is older than the group's epoch
    RECONCILING = "Reconciling"  # some member does not have its target yet
    STABLE = "Stable"  # every member has its target
    DEAD = "Dead"  # deleted: the last state


class ConsumerGroup:
    """One group. Fields are read freely; they change through `apply` alone."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assigned_at_ms = 0
        self.members: dict[str, Member] = {}
        #: member id -> the partitions that the member is to read
        self.targets: dict[str, Target] = {}
        #: group instance id -> member id
        self.static_members: dict[str, str] = {}
        #: topic id -> partition -> the member that reads it, or has not given it back yet
        self.owners: dict[UUID, dict[int, str]] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        #: regular expression -> how many members subscribe with it
        self.regex_members: Counter[str] = Counter()
        #: topic name -> how many members subscribe to it by name
        self.name_members: Counter[str] = Counter()
        self.assignor_members: Counter[str] = Counter()
        #: name of a classic assignor -> how many members support it
        self.classic_protocols: Counter[str] = Counter()
        self.classic_count = 0
        #: The memory of the members' metadata, and of the topics that patterns matched, in bytes.
        self.member_bytes = 0
        #: How many records have been applied. While this is the same, the group is unchanged.
        self.revision = 0

    # --- questions

    @property
    def state(self) -> ConsumerGroupState:
        """The state that clients are shown. O(members)."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def target(self, member_id: str) -> Target:
        return self.targets.get(member_id, _NOTHING)

    def member(self, member_id: str) -> Member:
        """Return the member. Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def static_member(self, instance_id: str, member_id: str) -> Member:
        """Return the member with this instance id and member id.

        Raises UNKNOWN_MEMBER_ID if no member has the instance id, FENCED_INSTANCE_ID if another
        member has it.
        """
        holder = self.static_members.get(instance_id)
        if holder is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if holder != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member"
                f" {holder}.",
            )
        return self.members[holder]

    def owner(self, topic_id: UUID, partition: int) -> str | None:
        """Return the member that reads the partition, or has not given it back yet; None: none."""
        return self.owners.get(topic_id, {}).get(partition)

    def subscribed_names(self) -> frozenset[str]:
        """Return every topic that some member reads, by name or regular expression."""
        by_regex = (
            self.regexes[regex].topics for regex in self.regex_members if regex in self.regexes
        )
        return frozenset(self.name_members).union(*by_regex)

    def reads(self, name: str) -> bool:
        """Return whether some member reads the topic, by name or regular expression."""
        return name in self.name_members or any(
            regex in self.regexes and name in self.regexes[regex].topics
            for regex in self.regex_members
        )

    def names_of(self, member: Member) -> frozenset[str]:
        """Return the topics that a member reads. A regex that is not resolved yet adds none."""
        found = self.regexes.get(member.topic_regex) if member.topic_regex else None
        return member.topic_names if found is None else member.topic_names | found.topics

    def preferred_assignor(self, default: str) -> str:
        """Return the assignor that most members ask for.

        In a tie `default` wins, else the first in the alphabet. In Apache Kafka, too, its default
        (`uniform`) wins a tie, whichever was asked for first.
        """
        votes = self.assignor_members
        if not votes:
            return default
        return min(votes, key=lambda name: (-votes[name], name != default, name))

    def draft(self) -> ConsumerGroup:
        """Return a copy on which records can be tried.

        The copy shares members and targets with this group, since these objects never change.
        """
        copy = ConsumerGroup(self.group_id)
        copy.epoch, copy.metadata_hash = self.epoch, self.metadata_hash
        copy.assignment_epoch, copy.assigned_at_ms = self.assignment_epoch, self.assigned_at_ms
        # Not `dict(...)`: that takes six times as long once an entry has been deleted.
        copy.members, copy.targets = self.members.copy(), self.targets.copy()
        copy.static_members = self.static_members.copy()
        copy.owners = {topic_id: owners.copy() for topic_id, owners in self.owners.items()}
        copy.regexes, copy.regex_members = self.regexes.copy(), self.regex_members.copy()
        copy.name_members = self.name_members.copy()
        copy.assignor_members = self.assignor_members.copy()
        copy.classic_protocols = self.classic_protocols.copy()
        copy.classic_count, copy.member_bytes = self.classic_count, self.member_bytes
        return copy

    # --- the fold

    def apply(self, record: ConsumerGroupRecord) -> None:
        """Fold one record. Nothing else changes a group."""
        self.revision += 1
        key, value = record.key, record.value
        match key:
            case ConsumerGroupMemberMetadataKey():
                self._on_subscription(
                    key.member_id, cast("ConsumerGroupMemberMetadataValue | None", value)
                )
            case ConsumerGroupCurrentMemberAssignmentKey():
                self._on_assignment(
                    key.member_id, cast("ConsumerGroupCurrentMemberAssignmentValue | None", value)
                )
            case ConsumerGroupTargetAssignmentMemberKey():
                self._on_target(
                    key.member_id, cast("ConsumerGroupTargetAssignmentMemberValue | None", value)
                )
            case ConsumerGroupRegularExpressionKey():
                self._on_regex(
                    key.regular_expression,
                    cast("ConsumerGroupRegularExpressionValue | None", value),
                )
            case ConsumerGroupTargetAssignmentMetadataKey():
                epoch = cast("ConsumerGroupTargetAssignmentMetadataValue | None", value)
                self.assignment_epoch = FIRST_EPOCH if epoch is None else epoch.assignment_epoch
                self.assigned_at_ms = 0 if epoch is None else epoch.assignment_timestamp
            case ConsumerGroupMetadataKey():
                group = cast("ConsumerGroupMetadataValue | None", value)
                self.epoch = FIRST_EPOCH if group is None else group.epoch
                self.metadata_hash = 0 if group is None else group.metadata_hash
            case _:
                raise AssertionError(f"{type(key).__name__} is no record of a consumer group")

    @property
    def is_gone(self) -> bool:
        """Whether the group has no records left."""
        return self.epoch == self.assignment_epoch == FIRST_EPOCH and not (
            self.metadata_hash or self.members or self.targets or self.regexes
        )

    def _on_subscription(
        self, member_id: str, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        old = self.members.get(member_id)
        if old is not None:
            self._count(old, -1)
        if value is None:
            if old is not None:
                self._release(member_id, old.assigned)
                self._release(member_id, old.revoking)
                del self.members[member_id]
                self._free_instance(old)
            return
        member = records.subscribed(old or Member(member_id=member_id), value)
        self.members[member_id] = member
        if old is not None and old.instance_id != member.instance_id:
            self._free_instance(old)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id
        self._count(member, 1)

    def _free_instance(self, member: Member) -> None:
        instance_id = member.instance_id
        # Another member may have the instance id by now.
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]

    def _on_assignment(
        self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        old = self.members.get(member_id)
        if old is None and value is None:
            return
        old = old or Member(member_id=member_id)
        member = records.unassigned(old) if value is None else records.assigned(old, value)
        # The record is the whole new assignment, so release every old partition first.
        self._release(member_id, old.assigned)
        self._release(member_id, old.revoking)
        self._take(member_id, member.assigned)
        self._take(member_id, member.revoking)
        # After compaction a member's assignment may come before its subscription.
        if member_id not in self.members:
            self._count(member, 1)
        self.members[member_id] = member

    def _on_target(
        self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None
    ) -> None:
        if value is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = records.target_of(value)

    def _on_regex(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        before = self.regexes.pop(regex, None)
        if before is not None:
            self.member_bytes -= texts_bytes(before.topics)
        if value is not None:
            topics = frozenset(value.topics)
            self.regexes[regex] = ResolvedRegex(topics, value.version, value.timestamp)
            self.member_bytes += texts_bytes(topics)

    def _release(self, member_id: str, assigned: Assigned) -> None:
        for topic_id, partitions in assigned.items():
            owners = self.owners.get(topic_id, {})
            for partition in partitions:
                # After compaction the next owner's record may come before this one.
                if owners.get(partition) == member_id:
                    del owners[partition]
            if not owners:
                self.owners.pop(topic_id, None)

    def _take(self, member_id: str, assigned: Assigned) -> None:
        for topic_id, partitions in assigned.items():
            self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))

    def _count(self, member: Member, step: int) -> None:
        """Add a member's subscription to the counters (step 1), or subtract it (step -1)."""
        self.member_bytes += step * member.size_bytes
        _add(self.name_members, member.topic_names, step)
        _add(self.regex_members, (member.topic_regex,) if member.topic_regex else (), step)
        _add(
            self.assignor_members, (member.server_assignor,) if member.server_assignor else (), step
        )
        if member.classic is not None:
            self.classic_count += step
            _add(self.classic_protocols, {name for name, _ in member.classic.protocols}, step)


def _add(counter: Counter[str], names: Iterable[str], step: int) -> None:
    if step == 1:
        # `update` runs in C, which is fast: a member may name thousands of topics.
        counter.update(names)
        return
    for name in names:
        counter[name] += step
        if not counter[name]:
            del counter[name]


class Draft:
    """The records of a decision in the making, tried on a copy of the group.

    `group` is the group with the records applied that `add` was given, from which the next record
    is decided. Read `group` again after each `add`: the first one makes the copy. The original
    group changes only when the records are in the log.
    """

    __slots__ = ("_is_copy", "group", "records")

    def __init__(self, group: ConsumerGroup, *, is_new: bool = False) -> None:
        """`is_new`: no shard has the group yet, so records may change it without a copy."""
        self.group = group
        self.records: list[ConsumerGroupRecord] = []
        self._is_copy = is_new

    def add(self, records: Iterable[ConsumerGroupRecord]) -> None:
        for record in records:
            if not self._is_copy:
                self.group = self.group.draft()
                self._is_copy = True
            self.group.apply(record)
            self.records.append(record)

    def add_untried(self, record: ConsumerGroupRecord) -> None:
        """Add a record that no later decision looks at, so that it costs no copy of the group."""
        self.records.append(record)
