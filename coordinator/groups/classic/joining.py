"""JoinGroup: a member joins, joins again, or changes its protocols.

A dynamic member without an id is first given an id, and then joins with that id (KIP-394). So a
client that does not receive the answer leaves no unused member behind. After a rebalance's joins a
known member may repeat its join without a change: then it gets the current generation again, since
the first answer may have been lost. The exception is the leader of a stable group: its join always
begins a rebalance.
"""

from __future__ import annotations

from coordinator.groups.classic.group import ClassicGroup, GroupState, Member
from coordinator.groups.classic.rebalance import (
    complete_if_all_joined,
    drop,
    generation_answer,
    prepare,
    prepare_or_complete,
    refuse_parked,
)
from coordinator.groups.classic.records import current_value
from coordinator.groups.classic.requests import (
    JoinAnswer,
    JoinRequest,
    Outcome,
    Token,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def join(group: ClassicGroup, request: JoinRequest, now_ms: int, token: Token) -> Outcome:
    """Carry out a JoinGroup request.

    The outcome has the answer for `token`, unless the join is parked until the rebalance ends.
    Raises INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID. Raises
    COORDINATOR_NOT_AVAILABLE while the group is being deleted, so that the client tries again.
    """
    group.check_alive()
    outcome = Outcome()
    if not _has_room(group, request.member_id):
        _turn_away(group, request.member_id, now_ms, token, outcome)
        return outcome
    if not group.supports(request.protocol_type, request.protocols):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"{group.group_id} speaks {group.protocol_type} {group.protocol_name}",
        )
    if request.member_id:
        _join_known(group, request, now_ms, token, outcome)
    elif request.group_instance_id is not None:
        _join_static(group, request, now_ms, token, outcome)
    elif request.must_know_its_id:
        group.add_pending(request.new_member_id, now_ms + request.session_timeout_ms)
        outcome.answer(
            token,
            JoinAnswer(member_id=request.new_member_id, error_code=ErrorCode.MEMBER_ID_REQUIRED),
        )
    else:
        _add(group, request, request.new_member_id, now_ms, token, outcome)
    return outcome


def _has_room(group: ClassicGroup, member_id: str) -> bool:
    size_max = group.limits.size_max
    if group.state is GroupState.EMPTY:
        return True
    member = group.members.get(member_id)
    # Old members that have not joined again yet do not count: the first clients that join make up
    # the next generation.
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.joining is not None) or (
            group.joins_waiting < size_max
        )
    return member is not None or len(group.members) < size_max


def _turn_away(
    group: ClassicGroup, member_id: str, now_ms: int, token: Token, outcome: Outcome
) -> None:
    """Refuse a member that finds the group full, and remove it if it was a member before."""
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    group.drop_pending(member_id)
    if member_id in group.members:
        drop(group, member_id, outcome, full)
    outcome.answer(token, JoinAnswer(member_id="", error_code=full))
    complete_if_all_joined(group, now_ms, outcome)


def _join_known(
    group: ClassicGroup, request: JoinRequest, now_ms: int, token: Token, outcome: Outcome
) -> None:
    if request.member_id in group.pending_members:
        # A pending id was given to a dynamic member: static members get their id when they join
        # (KIP-394).
        if request.group_instance_id is not None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is not the id of a static member"
            )
        _add(group, request, request.member_id, now_ms, token, outcome)
        return
    member = group.known(request.member_id, request.group_instance_id)
    says_nothing_new = member.protocols == request.protocols
    leads = group.leader == member.member_id
    completing = group.state is GroupState.COMPLETING_REBALANCE
    stable = group.state is GroupState.STABLE
    if says_nothing_new and (completing or (stable and not leads)):
        outcome.answer(token, generation_answer(group, member))
        return
    _update(group, member, request, token, outcome)
    prepare_or_complete(group, now_ms, outcome)


def _add(
    group: ClassicGroup,
    request: JoinRequest,
    member_id: str,
    now_ms: int,
    token: Token,
    outcome: Outcome,
) -> None:
    member = Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        joining=token,
        is_new=True,
    )
    group.add(member, request.protocol_type)
    group.member_joined_meanwhile = True
    # The client learns its id from the answer, and cannot send heartbeats before.
    group.restart_session(member, now_ms, group.limits.new_member_join_timeout_ms)
    prepare_or_complete(group, now_ms, outcome)


def _update(
    group: ClassicGroup, member: Member, request: JoinRequest, token: Token, outcome: Outcome
) -> None:
    """Store the member's new protocols and timeouts, and park its join.

    An older parked join of the same member is answered with REBALANCE_IN_PROGRESS.
    """
    group.update(
        member, request.protocols, request.session_timeout_ms, request.rebalance_timeout_ms
    )
    superseded = group.park_join(member, token)
    if superseded is not None:
        outcome.answer(
            superseded,
            JoinAnswer(member_id=member.member_id, error_code=ErrorCode.REBALANCE_IN_PROGRESS),
        )


def _join_static(
    group: ClassicGroup, request: JoinRequest, now_ms: int, token: Token, outcome: Outcome
) -> None:
    """Join a static member without an id: a new one, or one that was restarted (KIP-345).

    A restarted static member replaces its former self, under a new member id.
    """
    assert request.group_instance_id is not None
    old_member_id = group.static_members.get(request.group_instance_id)
    if old_member_id is None:
        _add(group, request, request.new_member_id, now_ms, token, outcome)
        return
    old_leader = group.leader
    member = group.members[old_member_id]
    # If two clients use one instance id, the later one wins, and the earlier one is fenced.
    refuse_parked(group, member, old_member_id, outcome, ErrorCode.FENCED_INSTANCE_ID)
    group.rename(member, request.new_member_id, request.client_id, request.client_host)
    member.is_new = False
    _update(group, member, request, token, outcome)
    group.restart_session(member, now_ms)
    # The group would choose the same protocol again, so the old assignment is still valid.
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
        _answer_restart(group, member, request, old_leader, outcome)
    elif group.state is GroupState.PREPARING_REBALANCE:
        complete_if_all_joined(group, now_ms, outcome)
    else:
        # In COMPLETING_REBALANCE the leader may assign to the old member id: begin a new rebalance.
        prepare(group, now_ms, outcome)


def _answer_restart(
    group: ClassicGroup,
    member: Member,
    request: JoinRequest,
    old_leader: str | None,
    outcome: Outcome,
) -> None:
    """Answer a restarted static member with the current generation, without a rebalance.

    A restarted leader must not assign again, because a stable group takes no assignment. So the
    answer sets `skip_assignment` (KIP-814). A client that does not know this field is told the
    former leader's member id instead. That is not the client's own id, so it does not assign.
    """
    token = group.take_join(member)
    assert token is not None
    leads = group.leader == member.member_id
    group_members = group.joined_members() if leads and request.can_skip_assignment else ()
    outcome.answer(
        token,
        JoinAnswer(
            member_id=member.member_id,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=(group.leader if request.can_skip_assignment else old_leader) or "",
            skip_assignment=leads and request.can_skip_assignment,
            members=group_members,
        ),
    )
    outcome.value = current_value(group)
