"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat.

A join is a heartbeat that says everything: it is answered at once, with the member's epoch as its
generation and without a leader. The sync fetches what the coordinator assigned. A heartbeat is
answered REBALANCE_IN_PROGRESS when the member has partitions to give back or to take. Source:
KIP-848, the part on migration.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.decision import Decision
from coordinator.groups.classic.requests import (
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from coordinator.groups.consumer.assignment import decide_target, reconcile
from coordinator.groups.consumer.consumer_protocol import (
    CONSUMER,
    Subscription,
    read_subscription,
    write_assignment,
)
from coordinator.groups.consumer.group import ConsumerGroup, Draft
from coordinator.groups.consumer.member import ClassicProtocols, Member, MemberState, as_target
from coordinator.groups.consumer.membership import check_room, replaced
from coordinator.groups.consumer.records import ConsumerGroupRecord, assignment_record
from coordinator.groups.consumer.requests import ConsumerLimits
from coordinator.groups.consumer.soft_state import SoftState
from coordinator.groups.consumer.subscription import TopicImage, subscribe
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError

JoinDecision = Decision[ConsumerGroupRecord, JoinAnswer]


def decide_join(
    draft: Draft,
    soft: SoftState,
    request: JoinRequest,
    topics: TopicImage,
    limits: ConsumerLimits,
    now_ms: int,
) -> JoinDecision:
    """Return the records and the answer of a classic member's join.

    Refuses with GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL, and static members with
    UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. A first join may be answered MEMBER_ID_REQUIRED.
    """
    group = draft.group
    if not limits.may_mix:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"Cannot join the consumer group {group.group_id} with the classic protocol because"
            " the group migration is disabled.",
        )
    check_room(group, request.member_id, limits.size_max)
    _check_protocols(group, request)
    is_static = request.group_instance_id is not None
    # The member learns its id before it counts, so that a lost answer leaves no ghost (KIP-394).
    if not request.member_id and request.must_know_its_id and not is_static:
        code = ErrorCode.MEMBER_ID_REQUIRED
        return Decision(answer=JoinAnswer(member_id=request.new_member_id, error_code=code))
    said = _subscription(request, topics)
    before = _joining_member(draft, request)
    member = _with_news(before, request, said)
    changed = subscribe(draft, before, member, topics, soft.topics_seen)
    draft.add(decide_target(draft.group, topics, limits, now_ms))
    current = draft.group.members.get(member.member_id, member)
    after = reconcile(draft.group, current, said.owned, topics, subscription_changed=changed)
    if after != current:
        draft.add_untried(assignment_record(group.group_id, after))
    answer = JoinAnswer(
        member_id=after.member_id,
        generation_id=after.epoch,
        protocol_type=CONSUMER,
        # As in Kafka: the coordinator assigns, so the name of the assignor means nothing.
        protocol_name=request.protocols[0][0],
    )
    return Decision(records=tuple(draft.records), answer=answer)


def answer_sync(group: ConsumerGroup, request: SyncRequest, topics: TopicImage) -> SyncAnswer:
    """Return what the member is assigned.

    Refuses with UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL, and REBALANCE_IN_PROGRESS where there is a newer assignment.
    """
    member, classic = known_classic_member(
        group, request.member_id, request.group_instance_id, request.generation_id
    )
    names = [name for name, _ in classic.protocols]
    # Any of its own: a classic group may have chosen another than the first before it was upgraded.
    if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, *names):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"{member.member_id} joined {group.group_id} with {CONSUMER} {', '.join(names)}",
        )
    if _must_catch_up(group.assignment_epoch, member):
        raise KafkaError(
            ErrorCode.REBALANCE_IN_PROGRESS,
            f"A new rebalance is triggered in group {group.group_id} and member"
            f" {member.member_id} should rejoin to catch up.",
        )
    # When the member joined with several protocols, only the first was read.
    subscription = classic.protocols[0][1]
    return SyncAnswer(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=write_assignment(as_target(member.assigned), subscription, topics),
    )


def must_join_again(group: ConsumerGroup, member: Member) -> bool:
    """Return whether a heartbeat is to be answered REBALANCE_IN_PROGRESS."""
    return (
        # Even before that epoch has a target: the member must not go on with a stale one.
        member.epoch < group.epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits(group, member))
    )


def known_classic_member(
    group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation_id: int
) -> tuple[Member, ClassicProtocols]:
    """Return the member, or refuse.

    UNKNOWN_MEMBER_ID (also for one that does not speak the classic protocol), FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION.
    """
    if group_instance_id is None:
        member = group.member(member_id)
    else:
        member = group.static_member(group_instance_id, member_id)
    if member.classic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol."
        )
    if generation_id != member.epoch:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation_id} is not equal to the member epoch"
            f" {member.epoch} of member {member_id}.",
        )
    return member, member.classic


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> None:
    """Raise INCONSISTENT_GROUP_PROTOCOL without an assignor that all classic members have.

    They may be alone one day, and then need it.
    """
    names = [name for name, _ in request.protocols]
    common = any(group.classic_protocols[name] == group.classic_count for name in names)
    if request.protocol_type != CONSUMER or not common:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"Member {request.member_id}'s protocols are not supported.",
        )


def _subscription(request: JoinRequest, topics: TopicImage) -> Subscription:
    try:
        return read_subscription(request.protocols[0][1], topics)
    except WireError as damage:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"not a consumer's subscription: {damage}"
        ) from None


def _joining_member(draft: Draft, request: JoinRequest) -> Member:
    """Return the member that joins: known, new, or in a static member's place."""
    group = draft.group
    member_id = request.member_id or request.new_member_id
    instance_id = request.group_instance_id
    if instance_id is not None:
        if request.member_id:
            return group.static_member(instance_id, member_id)
        holder = group.static_members.get(instance_id)
        if holder is not None:
            member, records = replaced(group, group.members[holder], member_id)
            draft.add(records)
            return member
    return group.members.get(member_id) or Member(member_id=member_id)


def _with_news(member: Member, request: JoinRequest, said: Subscription) -> Member:
    return replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=said.rack_id or member.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=said.topic_names,
        # The classic protocol has no patterns on the broker's side.
        topic_regex="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicProtocols(request.session_timeout_ms, request.protocols),
    )


def _must_catch_up(epoch: int, member: Member) -> bool:
    """Return whether the member has a newer assignment to join for.

    A member that has yet to give partitions back has just joined: one thing after the other.
    """
    return epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS


def _waits(group: ConsumerGroup, member: Member) -> bool:
    """Return whether others still hold part of the member's target."""
    return any(
        group.owner(topic_id, partition) not in (None, member.member_id)
        for topic_id, partitions in group.target(member.member_id).items()
        for partition in partitions
        if partition not in member.assigned.get(topic_id, {})
    )


def is_gone(group: ConsumerGroup, leaving: LeavingMember) -> bool:
    """Return whether a LeaveGroup names what is no member of the group: UNKNOWN_MEMBER_ID."""
    if leaving.group_instance_id is None:
        return leaving.member_id not in group.members
    return leaving.group_instance_id not in group.static_members


def known_leaving_member(group: ConsumerGroup, leaving: LeavingMember) -> Member:
    """Return the member that a LeaveGroup names, of either protocol.

    UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. A static member may be named by its instance id alone.
    """
    instance_id = leaving.group_instance_id
    if instance_id is None:
        return group.member(leaving.member_id)
    member_id = leaving.member_id or group.static_members.get(instance_id, "")
    return group.static_member(instance_id, member_id)
