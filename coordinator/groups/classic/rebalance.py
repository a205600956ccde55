"""A rebalance of a classic group: how one generation ends and the next one forms.

    prepare -> (all have joined | the rebalance timeout) -> complete_join -> the leader's sync

Owns SyncGroup, and the steps that JoinGroup, LeaveGroup and the timers share.

A member that has not rejoined when the rebalance times out is removed; a static member is kept
until its session ends. A member that does not ask for its assignment in time is removed as well. A
client that hung up while its join was parked counts as not rejoined. Kafka cannot see that a client
hung up: it takes the dead member into the generation, and all others wait for that member.
"""

from __future__ import annotations

from coordinator.groups.classic.group import LEGAL_PREDECESSORS, ClassicGroup, GroupState, Member
from coordinator.groups.classic.records import empty_value, stable_value
from coordinator.groups.classic.requests import JoinAnswer, Outcome, SyncAnswer, SyncRequest, Token
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: The shortest wait before a rebalance that no member has joined is looked at again. Members may
#: name a rebalance timeout of 0; without this bound the timer would fire without a pause.
_PUT_OFF_MS_MIN = 1_000

_MAY_PREPARE = LEGAL_PREDECESSORS[GroupState.PREPARING_REBALANCE]


def prepare_or_complete(group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
    """Begin a rebalance after a change of members, or complete the running one if all joined."""
    if group.state in _MAY_PREPARE:
        prepare(group, now_ms, outcome)
    else:
        complete_if_all_joined(group, now_ms, outcome)


def prepare(group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
    """Begin a rebalance; in an empty group, begin the initial wait for first members."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        refuse_syncs(group, now_ms, outcome)
    group.sync_deadline_ms = None
    group.pending_syncs.clear()
    # The initial wait of an empty group saves a rebalance for each member at start-up (KIP-134).
    was_empty = group.state is GroupState.EMPTY
    group.transition(GroupState.PREPARING_REBALANCE, now_ms)
    if was_empty:
        _wait_for_first_members(group, now_ms, outcome)
        return
    group.join_deadline_ms = now_ms + group.rebalance_timeout_ms
    complete_if_all_joined(group, now_ms, outcome)


def _wait_for_first_members(group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
    delay = group.limits.initial_rebalance_delay_ms
    if delay <= 0:
        complete_join(group, now_ms, outcome)
        return
    group.member_joined_meanwhile = False
    group.initial_rebalance_left_ms = max(group.rebalance_timeout_ms - delay, 0)
    group.join_deadline_ms = now_ms + delay


def on_join_deadline(group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
    """End the wait for members, or prolong an initial wait during which a member has joined."""
    left = group.initial_rebalance_left_ms
    if left and group.member_joined_meanwhile:
        group.member_joined_meanwhile = False
        delay = min(group.limits.initial_rebalance_delay_ms, left)
        group.initial_rebalance_left_ms = left - delay
        group.join_deadline_ms = now_ms + delay
        return
    complete_join(group, now_ms, outcome)


def complete_if_all_joined(group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
    """Form the generation if no member is missing and no initial wait is running."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.initial_rebalance_left_ms is None
        and group.all_joined
    ):
        complete_join(group, now_ms, outcome)


def complete_join(group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
    """Form the next generation of the members that have joined, and answer their joins."""
    group.join_deadline_ms = None
    for member in list(group.members.values()):
        token = member.joining
        if token is not None and group.limits.is_abandoned(token):
            group.take_join(member)
            # Only the client's side of the connection may be closed, which waits for every answer.
            answer = JoinAnswer(member_id="", error_code=ErrorCode.UNKNOWN_MEMBER_ID)
            outcome.answer(token, answer)
            member.is_new = False
            group.restart_session(member, now_ms)
        # A static member keeps its place: it may only be restarting (KIP-345).
        if member.joining is None and not member.is_static:
            group.remove(member.member_id)
    if group.members and not _choose_joined_leader(group):
        # Only static members are left, and none has rejoined. Each stays until its session ends.
        group.initial_rebalance_left_ms = None
        group.join_deadline_ms = now_ms + max(group.rebalance_timeout_ms, _PUT_OFF_MS_MIN)
        return
    group.initial_rebalance_left_ms = None
    if not group.members:
        assert group.state is GroupState.PREPARING_REBALANCE, group.state
        outcome.value = empty_value(group, now_ms)
        return
    group.generation_id += 1
    group.protocol_name = group.select_protocol()
    group.transition(GroupState.COMPLETING_REBALANCE, now_ms)
    _answer_joins(group, now_ms, outcome)
    # Every member has to ask for its assignment in time, or the next rebalance begins.
    group.pending_syncs = set(group.members)
    group.sync_deadline_ms = now_ms + group.rebalance_timeout_ms


def _choose_joined_leader(group: ClassicGroup) -> bool:
    """Make a member that has joined the leader; return False if no member has joined."""
    assert group.leader is not None
    if group.members[group.leader].joining is not None:
        return True
    # A leader that has not joined again cannot assign: another member takes its place.
    joined = (m.member_id for m in group.members.values() if m.joining is not None)
    group.leader = next(joined, group.leader)
    return group.members[group.leader].joining is not None


def _answer_joins(group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
    for member in group.members.values():
        group.restart_session(member, now_ms)
        member.is_new = False
        token = group.take_join(member)
        if token is not None:
            outcome.answer(token, generation_answer(group, member))


def generation_answer(group: ClassicGroup, member: Member) -> JoinAnswer:
    """Return the answer that tells `member` of the current generation."""
    return JoinAnswer(
        member_id=member.member_id,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        members=group.joined_members() if member.member_id == group.leader else (),
    )


def refuse_syncs(group: ClassicGroup, now_ms: int, outcome: Outcome) -> None:
    """Tell the members that wait for their assignment to join again: no assignment will come."""
    for member in group.members.values():
        group.assign(member, b"")
        token, member.syncing = member.syncing, None
        if token is not None:
            outcome.answer(token, SyncAnswer(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
            group.restart_session(member, now_ms)


def drop(group: ClassicGroup, member_id: str, outcome: Outcome, code: ErrorCode) -> None:
    """Remove a member, and refuse its parked requests with `code`."""
    member = group.members[member_id]
    refuse_parked(group, member, "", outcome, code)
    group.remove(member_id)


def refuse_parked(
    group: ClassicGroup, member: Member, told_id: str, outcome: Outcome, code: ErrorCode
) -> None:
    """Answer a member's parked join and sync with `code`; the answer to a join names `told_id`."""
    if (joining := group.take_join(member)) is not None:
        outcome.answer(joining, JoinAnswer(member_id=told_id, error_code=code))
    syncing, member.syncing = member.syncing, None
    if syncing is not None:
        outcome.answer(syncing, SyncAnswer(error_code=code))


def sync(group: ClassicGroup, request: SyncRequest, now_ms: int, token: Token) -> Outcome:
    """Answer a SyncGroup request in the outcome, or park it until the leader's request comes.

    Refuses with UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL (KIP-559), REBALANCE_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE.
    """
    member = _validated(group, request)
    outcome = Outcome()
    group.pending_syncs.discard(member.member_id)
    # Every member of the generation has asked: the deadline for asking is over.
    if not group.pending_syncs:
        group.sync_deadline_ms = None
    if group.state is GroupState.STABLE:
        group.restart_session(member, now_ms)
        outcome.answer(token, _assigned(group, member.assignment))
        return outcome
    superseded, member.syncing = member.syncing, token
    if superseded is not None:
        outcome.answer(superseded, SyncAnswer(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    if member.member_id == group.leader:
        _assign(group, request.assignments, now_ms, outcome)
    return outcome


def assigns(group: ClassicGroup, request: SyncRequest) -> bool:
    """Return whether the group would take over the assignments of the request."""
    return (
        group.state is GroupState.COMPLETING_REBALANCE
        and request.member_id == group.leader
        and request.generation_id == group.generation_id
    )


def _validated(group: ClassicGroup, request: SyncRequest) -> Member:
    group.check_alive()
    member = group.known(request.member_id, request.group_instance_id)
    group.check_generation(request.generation_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        # First: in a group that was a consumer group, members may know another protocol's name.
        raise KafkaError(
            ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} is rebalancing: join again"
        )
    if request.protocol_type not in (None, group.protocol_type) or (
        request.protocol_name not in (None, group.protocol_name)
    ):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"group {group.group_id} has chosen {group.protocol_type} {group.protocol_name},"
            f" the member names {request.protocol_type} {request.protocol_name}",
        )
    assert group.state is not GroupState.EMPTY, "an empty group has a member"
    return member


def _assign(
    group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, outcome: Outcome
) -> None:
    """Make the group stable; a member that the leader gave nothing has an empty assignment."""
    assert group.state is GroupState.COMPLETING_REBALANCE, group.state
    outcome.value = stable_value(group, assignments, now_ms)
    for member in group.members.values():
        token, member.syncing = member.syncing, None
        if token is not None:
            outcome.answer(token, _assigned(group, assignments.get(member.member_id, b"")))
            group.restart_session(member, now_ms)


def _assigned(group: ClassicGroup, assignment: bytes) -> SyncAnswer:
    return SyncAnswer(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=assignment,
    )
