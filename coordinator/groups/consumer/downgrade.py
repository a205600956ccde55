"""A consumer group becomes a classic group: the last member of the consumer protocol is gone.

The classic members stay, with their target assignments as the last generation, which is the
group's epoch; they join again at once. Source: KIP-848, the part on migration.
"""

from __future__ import annotations

from collections.abc import Collection

from coordinator.groups.classic.group import ClassicGroup, GroupLimits
from coordinator.groups.classic.member import Member as ClassicMember
from coordinator.groups.classic.state import GroupState
from coordinator.groups.consumer.embedded import CONSUMER, write_assignment
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.records import (
    ConsumerGroupRecord,
    group_tombstones,
    member_tombstones,
    regex_record,
)
from coordinator.groups.consumer.topics import TopicImage


def is_downgrade_due(
    group: ConsumerGroup, leaving: Collection[str], *, allowed: bool, size_max: int
) -> bool:
    """Return whether classic members alone are left when these leave: at least one, none else.

    `size_max` is of classic groups.
    """
    left = len(group.members) - len(leaving)
    if not allowed or left <= 0 or left > size_max or left > group.classic_count:
        return False
    leaving_classic = sum(group.members[member_id].classic is not None for member_id in leaving)
    return left == group.classic_count - leaving_classic


def downgraded(
    group: ConsumerGroup,
    leaving: Collection[str],
    topics: TopicImage,
    limits: GroupLimits,
    now_ms: int,
) -> ClassicGroup:
    """Return the classic group of those who stay, stable. The caller has them join again."""
    classic = ClassicGroup(group.group_id, limits, now_ms)
    classic.generation_id = group.epoch
    for member in group.members.values():
        if member.member_id in leaving:
            continue
        assert member.classic is not None, "is_downgrade_due comes first"
        kept = ClassicMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.classic.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=member.classic.protocols,
        )
        classic.add(kept, CONSUMER)
    classic.protocol_name = classic.select_protocol()
    classic.state = GroupState.STABLE
    for kept in classic.members.values():
        subscription = kept.metadata(classic.protocol_name)
        kept.assignment = write_assignment(group.target(kept.member_id), subscription, topics)
    return classic


def deletion(group: ConsumerGroup) -> list[ConsumerGroupRecord]:
    """Return what deletes a consumer group with its members."""
    group_id = group.group_id
    records = [
        record for member_id in group.members for record in member_tombstones(group_id, member_id)
    ]
    records += [regex_record(group_id, regex, None) for regex in group.regexes]
    return records + group_tombstones(group_id)
