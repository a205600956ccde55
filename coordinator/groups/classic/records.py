"""A classic group and its record in `__consumer_offsets`: GroupMetadataKey and -Value, version 3.

The record holds the last generation that was stable, or that the group is empty. `apply` alone
enters these two states, live and in replay. The generation in the making is in no record: after a
restart its members are told ILLEGAL_GENERATION, and join again.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.groups.classic.group import ClassicGroup, Member
from wire.errors import WireError
from wire.internal.group_metadata import GroupMetadataValue, MemberMetadata

#: What Apache Kafka 4.4 writes.
VERSION = 3


def stable_value(
    group: ClassicGroup, assignments: Mapping[str, bytes], now_ms: int
) -> GroupMetadataValue:
    """Return the record of the current generation, which is stable with these assignments.

    `assignments` is by member id; a member that is not in it has an empty assignment.
    """
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader,
        current_state_timestamp=now_ms,
        members=[
            _to_record(member, group.protocol_name, assignments.get(member.member_id, b""))
            for member in group.members.values()
        ],
    )


def empty_value(group: ClassicGroup, now_ms: int) -> GroupMetadataValue:
    """Return the record of the next generation, which has no members."""
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id + 1,
        protocol=None,
        leader=None,
        current_state_timestamp=now_ms,
        members=[],
    )


def current_value(group: ClassicGroup) -> GroupMetadataValue:
    """Return the record of a stable or empty group as it is."""
    assignments = {member.member_id: member.assignment for member in group.members.values()}
    return stable_value(group, assignments, group.state_changed_ms)


def check_members(value: GroupMetadataValue) -> None:
    """Raise WireError for a record that names a member, or a static member, twice."""
    member_ids = [member.member_id for member in value.members]
    instance_ids = [
        member.group_instance_id for member in value.members if member.group_instance_id is not None
    ]
    for ids in (member_ids, instance_ids):
        if len(set(ids)) < len(ids):
            raise WireError(f"a record of a group names a member twice: {ids[:10]}")


def apply(group: ClassicGroup, value: GroupMetadataValue) -> None:
    """Make the group what its record says: stable, or empty.

    A live member that the record describes as it is stays, with its session and all protocols that
    it speaks. In replay members come from the record, which has the selected protocol alone; their
    sessions begin when `resume` is called.
    """
    members = []
    for recorded in value.members:
        member = group.members.get(recorded.member_id)
        if member is None or _to_record(member, value.protocol, recorded.assignment) != recorded:
            member = _from_record(recorded, value.protocol)
        member.assignment = bytes(recorded.assignment)
        members.append(member)
    group.generation_id = value.generation
    group.protocol_name = value.protocol
    group.rest(members, value.protocol_type, value.leader, value.current_state_timestamp)


def resume(group: ClassicGroup, now_ms: int) -> None:
    """Give every member a whole session from now: the broker's downtime expires no member."""
    for member in group.members.values():
        group.restart_session(member, now_ms)


def _to_record(member: Member, protocol: str | None, assignment: bytes) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )


def _from_record(recorded: MemberMetadata, protocol: str | None) -> Member:
    rebalance_ms = recorded.rebalance_timeout
    return Member(
        member_id=recorded.member_id,
        group_instance_id=recorded.group_instance_id,
        client_id=recorded.client_id,
        client_host=recorded.client_host,
        session_timeout_ms=recorded.session_timeout,
        # Version 0 of the record has no rebalance timeout.
        rebalance_timeout_ms=recorded.session_timeout if rebalance_ms < 0 else rebalance_ms,
        protocols=((protocol or "", bytes(recorded.subscription)),),
    )
