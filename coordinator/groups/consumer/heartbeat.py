"""ConsumerGroupHeartbeat: a member joins, lives, subscribes, gives partitions back, is given some.

A heartbeat that says nothing new to a group at rest is O(1), and nothing is written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from coordinator.decision import Decision
from coordinator.groups.consumer.assignment import decide_target, reconcile
from coordinator.groups.consumer.group import Draft
from coordinator.groups.consumer.member import JOINING, Member, as_target
from coordinator.groups.consumer.membership import speaking_member
from coordinator.groups.consumer.records import assignment_record
from coordinator.groups.consumer.requests import (
    ConsumerLimits,
    HeartbeatAnswer,
    HeartbeatDecision,
    HeartbeatRequest,
)
from coordinator.groups.consumer.soft_state import SoftState
from coordinator.groups.consumer.subscription import TopicImage, resolve, subscribe

T = TypeVar("T")

#: How soon a member is to come back for what its new pattern matches. Apache Kafka names the whole
#: interval, which is 5 s (docs/decisions/0080-topics-of-a-pattern-come-second.md).
_UNTIL_MATCHED_TOPICS_MS = 100


def decide_heartbeat(
    draft: Draft,
    soft: SoftState,
    request: HeartbeatRequest,
    topics: TopicImage,
    limits: ConsumerLimits,
    now_ms: int,
) -> HeartbeatDecision:
    """Return the records and the answer of a heartbeat that does not leave.

    `request` has passed `check_heartbeat`, and `soft` belongs to the group. Refuses as
    `speaking_member`.
    """
    before, records = speaking_member(draft.group, request, limits)
    draft.add(records)
    said = _with_news(before, request)
    changed = subscribe(draft, before, said, topics, soft.topics_seen)
    draft.add(decide_target(draft.group, topics, limits, now_ms))
    is_at_rest = soft.is_at_rest(draft.group, said.member_id)
    if is_at_rest and not draft.records and request.owned is None:
        # A member that waits for others is at rest too, and not compared with its target.
        return Decision(answer=_answer(request, before, said, limits))
    current = draft.group.members.get(said.member_id, said)
    after = reconcile(draft.group, current, request.owned, topics, subscription_changed=changed)
    if after != current:
        draft.add_untried(assignment_record(draft.group.group_id, after))
    answer = _answer(request, before, after, limits)
    # The last step: the member is given what its new pattern matches with its next heartbeat.
    if request.resolved is not None and resolve(draft, said.topic_regex, request.resolved, topics):
        interval_ms = min(answer.heartbeat_interval_ms, _UNTIL_MATCHED_TOPICS_MS)
        answer = replace(answer, heartbeat_interval_ms=interval_ms)
    return Decision(records=tuple(draft.records), answer=answer)


def _with_news(member: Member, request: HeartbeatRequest) -> Member:
    """Return the member with what the request says of it; the same object for nothing new."""
    if _says_nothing(request, member):
        return member
    timeout_ms = request.rebalance_timeout_ms
    said = replace(
        member,
        instance_id=_or(request.instance_id, member.instance_id),
        rack_id=_or(request.rack_id, member.rack_id),
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms < 0 else timeout_ms,
        topic_names=_or(request.topic_names, member.topic_names),
        topic_regex=_or(request.topic_regex, member.topic_regex),
        server_assignor=_or(request.server_assignor, member.server_assignor),
        client_id=request.client_id,
        client_host=request.client_host,
        # Whatever protocol the member spoke before, it speaks the consumer protocol now.
        classic=None,
    )
    # The same object: whether anything changed is then a comparison of identities.
    return member if said.said_the_same(member) else said


def _says_nothing(request: HeartbeatRequest, member: Member) -> bool:
    """Return whether the request only says that the member lives: nearly all of them do."""
    return (
        request.rebalance_timeout_ms < 0
        and request.topic_names is None
        and request.topic_regex is None
        and request.server_assignor is None
        and request.rack_id is None
        and request.instance_id in (None, member.instance_id)
        and request.client_id == member.client_id
        and request.client_host == member.client_host
        and member.classic is None
    )


def _or(said: T | None, before: T) -> T:
    return before if said is None else said


def _answer(
    request: HeartbeatRequest, before: Member, after: Member, limits: ConsumerLimits
) -> HeartbeatAnswer:
    """Return the answer, with the assignment where the member may not know it.

    That is: the member joins, or tells everything, or its assignment has changed.
    """
    tells_everything = (
        request.rebalance_timeout_ms >= 0
        and (request.topic_names is not None or request.topic_regex is not None)
        and request.owned is not None
    )
    is_told = (
        request.member_epoch == JOINING
        or tells_everything
        or (after is not before and as_target(after.assigned) != as_target(before.assigned))
    )
    return HeartbeatAnswer(
        member_id=after.member_id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=limits.heartbeat_interval_ms,
        assignment=after.assigned if is_told else None,
    )
