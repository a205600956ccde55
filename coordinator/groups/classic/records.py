"""A classic group and its record in `__consumer_offsets`: GroupMetadataKey and -Value, version 3.

The record holds the last generation that was stable, or that the group is empty. Whatever is in
the making is not in it: after a restart its members are told ILLEGAL_GENERATION, and join again.
"""

from __future__ import annotations

from coordinator.groups.classic.group import ClassicGroup, GroupLimits, GroupState, Member
from wire.internal.group_metadata import GroupMetadataValue, MemberMetadata

#: What Apache Kafka 4.3 writes.
VERSION = 3


def group_value(group: ClassicGroup) -> GroupMetadataValue:
    """Return the persistent value of a stable or empty group."""
    assert group.state in (GroupState.STABLE, GroupState.EMPTY), group.state
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader,
        current_state_timestamp=group.state_changed_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def restored(group_id: str, value: GroupMetadataValue, limits: GroupLimits) -> ClassicGroup:
    """Return the group as its record has it. Sessions begin when `resume` is called."""
    group = ClassicGroup(group_id, limits, value.current_state_timestamp)
    group.generation_id = value.generation
    group.protocol_name = value.protocol
    for kept in value.members:
        rebalance = kept.rebalance_timeout
        member = Member(
            member_id=kept.member_id,
            group_instance_id=kept.group_instance_id,
            client_id=kept.client_id,
            client_host=kept.client_host,
            session_timeout_ms=kept.session_timeout,
            rebalance_timeout_ms=kept.session_timeout if rebalance < 0 else rebalance,
            protocols=((value.protocol or "", bytes(kept.subscription)),),
            assignment=bytes(kept.assignment),
        )
        group.add(member, value.protocol_type)
    group.protocol_type = value.protocol_type or None
    group.leader = value.leader
    if group.members:
        group.state = GroupState.STABLE
    return group


def resume(group: ClassicGroup, now_ms: int) -> None:
    """Give every member a whole session from now: nobody is lost for the time the broker was."""
    for member in group.members.values():
        group.restart_session(member, now_ms)
