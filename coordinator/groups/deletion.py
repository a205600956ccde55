"""What deletes groups and offsets: administrators (DeleteGroups, OffsetDelete), and retention.

`offsets.retention.minutes` counts from the last commit or from the loss of the last member. Source:
KIP-211, KIP-496.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from coordinator.decision import Decision
from coordinator.groups.classic.group import GroupState
from coordinator.groups.consumer import migration
from coordinator.groups.consumer.consumer_protocol import CONSUMER, subscribed_topics
from coordinator.groups.offsets.committed import OffsetRecord, deletions
from coordinator.groups.records import GroupRecord, ShardRecord
from coordinator.groups.shard import GroupShard
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: How many offsets of a topic expire in one step: some milliseconds.
EXPIRED_AT_ONCE = 256

#: The answer has a code for each partition, in order.
OffsetDeletion = Decision[OffsetRecord, list[ErrorCode]]


def decide_deletion(shard: GroupShard, group_id: str) -> list[ShardRecord]:
    """Return the records that delete a group with all that it has committed or pending.

    Refuses with GROUP_ID_NOT_FOUND, and NON_EMPTY_GROUP while the group has members.
    """
    consumer_group = shard.consumer_groups.get(group_id)
    is_empty = (
        not consumer_group.members
        if consumer_group is not None
        else shard.find(group_id).state is GroupState.EMPTY
    )
    if not is_empty:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} is not empty.")
    return [*shard.offsets.deletion_of_group(group_id), *group_deletion(shard, group_id)]


def group_deletion(shard: GroupShard, group_id: str) -> list[ShardRecord]:
    """Return the records that delete a group without members, of either kind, not its offsets."""
    consumer_group = shard.consumer_groups.get(group_id)
    if consumer_group is not None:
        # With its regular expressions: a removal of many members takes several batches, and a crash
        # between them leaves those of members that are gone.
        return list(migration.deletion(consumer_group))
    return [GroupRecord(group_id, None)]


def decide_offset_deletion(
    shard: GroupShard, group_id: str, partitions: Sequence[tuple[str, int]]
) -> OffsetDeletion:
    """Return the deletions of what is committed or pending for these (topic, partition).

    What a member reads stays: GROUP_SUBSCRIBED_TO_TOPIC. Refuses with GROUP_ID_NOT_FOUND,
    NON_EMPTY_GROUP.
    """
    subscribed = _subscribed_topics(shard, group_id)
    topics = {topic for topic, _ in partitions}
    refused = topics if subscribed is None else topics & subscribed
    # Pending ones too: else a marker would bring the offset back.
    known = {topic: shard.offsets.known_of(group_id, topic) for topic in topics - refused}
    stored = [
        (topic, index) for topic, index in partitions if topic in known and index in known[topic]
    ]
    subscribed_to, deleted = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE
    codes = [subscribed_to if topic in refused else deleted for topic, _ in partitions]
    return Decision(records=tuple(deletions(group_id, stored)), answer=codes)


def decide_expiry(
    shard: GroupShard, group_id: str, topic: str, now_ms: int, retention_ms: int
) -> list[ShardRecord]:
    """Return the deletions of a topic's offsets that were unused for `retention_ms`.

    Only in a group without members; one whose last offset goes is deleted as a whole, and so is one
    without any offset, whatever the topic. At most EXPIRED_AT_ONCE offsets: where so many or more
    records are returned, there may be more to do once they are applied.
    """
    consumer_group = shard.consumer_groups.get(group_id)
    if consumer_group is not None and consumer_group.members:
        return []
    group = shard.groups.get(group_id)
    # An id that was given and not used yet is a member about to come.
    if group is not None and (group.state is not GroupState.EMPTY or group.pending_members):
        return []
    unused_since_ms = -1 if group is None else group.state_changed_ms
    found = shard.offsets.deletion_of_expired(
        group_id, topic, now_ms, retention_ms, unused_since_ms
    )
    expired: list[ShardRecord] = list(islice(found, EXPIRED_AT_ONCE))
    is_all = shard.offsets.is_all(group_id, len(expired))
    is_known = group is not None or consumer_group is not None
    # A pending ack may yet be committed: the group stays for it.
    if is_known and is_all and not shard.offsets.pending.holds_any(group_id):
        expired += group_deletion(shard, group_id)
    return expired


def _subscribed_topics(shard: GroupShard, group_id: str) -> frozenset[str] | None:
    """Return the topics that members of the group read; None where that cannot be known."""
    consumer_group = shard.consumer_groups.get(group_id)
    if consumer_group is not None:
        return consumer_group.subscribed_names()
    group = shard.find(group_id)
    if not group.members:
        return frozenset()
    if group.protocol_type != CONSUMER:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} is not empty.")
    return subscribed_topics(group)
