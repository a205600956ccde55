"""The records of consumer groups: record types 3, 5, 6, 7, 8 and 16 of `__consumer_offsets`.

A record is a key and a value, both messages. A value of None deletes the key. Kafka before 4.1 also
wrote type 4, ConsumerGroupPartitionMetadata, which adds nothing to the other types and is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from coordinator.groups.consumer.member import (
    Assigned,
    ClassicProtocols,
    Member,
    MemberState,
    Target,
)
from wire.internal import consumer_group_current_member_assignment as current
from wire.internal import consumer_group_member_metadata as metadata
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
    TopicPartition,
)
from wire.internal.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from wire.internal.versioned import decode_versioned, encode_versioned
from wire.message import Buffer, Message, RecordKey

#: The class of the value for each class of key.
VALUES: dict[type[RecordKey], type[Message]] = {
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    metadata.ConsumerGroupMemberMetadataKey: metadata.ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    current.ConsumerGroupCurrentMemberAssignmentKey: (
        current.ConsumerGroupCurrentMemberAssignmentValue
    ),
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
}
_KEYS = {key.record_type: key for key in VALUES}


@dataclass(frozen=True, slots=True)
class ConsumerGroupRecord:
    """The new value of a key; None deletes it."""

    group_id: str
    key: RecordKey
    value: Message | None


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression matched when the topics had this `version`."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


def encode(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value; a value of None is a tombstone."""
    value = record.value
    return encode_versioned(record.key), None if value is None else encode_versioned(value)


def decode(record_type: int, key: Buffer, value: Buffer | None) -> ConsumerGroupRecord | None:
    """Return the record, or None for a record of another type. Raises WireError."""
    key_class = _KEYS.get(record_type)
    if key_class is None:
        return None
    decoded = decode_versioned(key_class, key)
    group_id = cast("ConsumerGroupMetadataKey", decoded).group_id
    body = None if value is None else decode_versioned(VALUES[key_class], value)
    return ConsumerGroupRecord(group_id, decoded, body)


# --- the records of a change


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> ConsumerGroupRecord:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return ConsumerGroupRecord(group_id, ConsumerGroupMetadataKey(group_id=group_id), value)


def group_tombstones(group_id: str) -> list[ConsumerGroupRecord]:
    """Return the records that delete a group without members."""
    return [
        ConsumerGroupRecord(
            group_id, ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None
        ),
        ConsumerGroupRecord(group_id, ConsumerGroupMetadataKey(group_id=group_id), None),
    ]


def subscription_record(group_id: str, member: Member) -> ConsumerGroupRecord:
    value = metadata.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        # Sorted, so that equal members have equal bytes.
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=_classic_metadata(member.classic),
    )
    key = metadata.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return ConsumerGroupRecord(group_id, key, value)


def _classic_metadata(classic: ClassicProtocols | None) -> metadata.ClassicMemberMetadata | None:
    if classic is None:
        return None
    return metadata.ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            metadata.ClassicProtocol(name=name, metadata=subscription)
            for name, subscription in classic.protocols
        ],
    )


def target_record(group_id: str, member_id: str, target: Target) -> ConsumerGroupRecord:
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in target.items()
        ]
    )
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return ConsumerGroupRecord(group_id, key, value)


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> ConsumerGroupRecord:
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=now_ms
    )
    key = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
    return ConsumerGroupRecord(group_id, key, value)


def assignment_record(group_id: str, member: Member) -> ConsumerGroupRecord:
    value = current.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_topic_partitions(member.assigned),
        partitions_pending_revocation=_topic_partitions(member.revoking),
    )
    key = current.ConsumerGroupCurrentMemberAssignmentKey(
        group_id=group_id, member_id=member.member_id
    )
    return ConsumerGroupRecord(group_id, key, value)


def member_tombstones(group_id: str, member_id: str) -> list[ConsumerGroupRecord]:
    """Return the records that delete a member. The first record frees the member's partitions."""
    keys: tuple[RecordKey, ...] = (
        current.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        metadata.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
    )
    return [ConsumerGroupRecord(group_id, key, None) for key in keys]


def regex_record(group_id: str, regex: str, found: ResolvedRegex | None) -> ConsumerGroupRecord:
    """Return the record of the topics that a regular expression matches.

    `found` is None if no member uses the expression any more.
    """
    value = None
    if found is not None:
        value = ConsumerGroupRegularExpressionValue(
            topics=sorted(found.topics), version=found.version, timestamp=found.timestamp_ms
        )
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return ConsumerGroupRecord(group_id, key, value)


# --- from records


def subscribed(member: Member, value: metadata.ConsumerGroupMemberMetadataValue) -> Member:
    """Return the member with the fields of its subscription record."""
    return replace(
        member,
        # An empty text means that there is none.
        instance_id=value.instance_id or None,
        rack_id=value.rack_id or None,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
        topic_regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor or None,
        classic=_classic_protocols(value.classic_member_metadata),
    )


def _classic_protocols(said: metadata.ClassicMemberMetadata | None) -> ClassicProtocols | None:
    if said is None:
        return None
    return ClassicProtocols(
        said.session_timeout_ms,
        tuple((each.name, bytes(each.metadata)) for each in said.supported_protocols),
    )


def assigned(member: Member, value: current.ConsumerGroupCurrentMemberAssignmentValue) -> Member:
    """Return the member with the fields of its assignment record."""
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=_state_of(value.state),
        assigned=_assigned_of(value.assigned_partitions, value.member_epoch),
        revoking=_assigned_of(value.partitions_pending_revocation, value.member_epoch),
    )


def unassigned(member: Member) -> Member:
    """Return the member without an assignment, like a member that is about to join."""
    fresh = Member(member_id=member.member_id)
    return replace(
        member,
        epoch=fresh.epoch,
        previous_epoch=fresh.previous_epoch,
        state=fresh.state,
        assigned={},
        revoking={},
    )


def target_of(value: ConsumerGroupTargetAssignmentMemberValue) -> Target:
    return {
        topic.topic_id: frozenset(topic.partitions)
        for topic in value.topic_partitions
        if topic.partitions
    }


def _assigned_of(topics: Iterable[current.TopicPartitions], member_epoch: int) -> Assigned:
    """Return the partitions with their assignment epochs, or the member's if there are none."""
    found: dict[UUID, Mapping[int, int]] = {}
    for topic in topics:
        # Kafka before 4.3 wrote no epochs (KIP-1251).
        epochs = topic.assignment_epochs or [member_epoch] * len(topic.partitions)
        if topic.partitions:
            found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=False))
    return found


def _state_of(code: int) -> MemberState:
    """Return the state of this code. UNKNOWN: a later version of Kafka has added the code."""
    try:
        return MemberState(code)
    except ValueError:
        return MemberState.UNKNOWN


def _topic_partitions(assigned: Assigned) -> list[current.TopicPartitions]:
    return [
        current.TopicPartitions(
            topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values())
        )
        for topic_id, epochs in assigned.items()
    ]
