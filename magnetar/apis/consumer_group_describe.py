"""ConsumerGroupDescribe (API key 69): the epochs, members and assignments of consumer groups.

Versions 0-1.  1: the protocol that each member speaks (KIP-1099).

An id that is no consumer group's is GROUP_ID_NOT_FOUND, with a message.  KIP-848.
"""

from __future__ import annotations

from coordinator.groups.classic.requests import check_group_id
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.member import Member as GroupMember
from coordinator.groups.consumer.member import Target, as_target
from magnetar.apis.authorization import Each, allowed_operations, require
from magnetar.apis.consumer_group_heartbeat import check_enabled
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.errors import KafkaError
from wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


@handles(
    ConsumerGroupDescribeRequest,
    versions="0-1",
    needs=[Each(Operation.DESCRIBE, Resource.GROUP, "group_ids")],
)
async def consumer_group_describe(
    services: Services, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    check_enabled(services)
    described = []
    # Each id once: a small request must not ask for a large response many times over.
    group_ids = dict.fromkeys(request.group_ids)
    await services.turns.begin()
    async for group_id in services.turns.each(group_ids):
        try:
            check_group_id(group_id)
            group = await _described(services, services.groups.find_consumer_group(group_id))
            if request.include_authorized_operations:
                group.authorized_operations = allowed_operations(
                    services, context, Resource.GROUP, group_id
                )
            _check_topics(services, group, context)
        except KafkaError as refusal:
            group = DescribedGroup(
                group_id=group_id, error_code=refusal.code, error_message=refusal.detail
            )
        described.append(group)
    # A state is not shown before the records that led to it are durable.
    await services.groups.shards.durable(group_ids)
    return ConsumerGroupDescribeResponse(groups=described)


def _check_topics(services: Services, group: DescribedGroup, context: RequestContext) -> None:
    """Raise TOPIC_AUTHORIZATION_FAILED where the client may not know of an assigned topic.

    As in Kafka, the names that members subscribe to are shown whatever the client may know of.
    """
    if services.acls is None:
        return
    names = {
        topic.topic_name
        for member in group.members
        for topics in (member.assignment, member.target_assignment)
        for topic in topics.topic_partitions
    }
    for name in sorted(names):
        require(services, context, Operation.DESCRIBE, Resource.TOPIC, name)


async def _described(services: Services, group: ConsumerGroup) -> DescribedGroup:
    # The assignor of a group whose members name none.
    default_assignor = services.groups.consumer.settings.assignors[0]
    described = DescribedGroup(
        error_message=None,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(default_assignor),
    )
    # All as of this step; a member may name ten thousand topics, and no member ever changes.
    members = [(member, group.target(member.member_id)) for member in group.members.values()]
    described.members = [_member(services, *each) async for each in services.turns.each(members)]
    return described


def _member(services: Services, member: GroupMember, target: Target) -> Member:
    # A partition is the member's until it has confirmed the revocation.
    has = as_target(member.assigned)
    for topic_id, partitions in as_target(member.revoking).items():
        has = {**has, topic_id: has.get(topic_id, frozenset()) | partitions}
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_assignment(services, has),
        target_assignment=_assignment(services, target),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _assignment(services: Services, target: Target) -> Assignment:
    """Return the partitions of topics that still exist."""
    found = []
    for topic_id, partitions in target.items():
        topic = services.topics.by_id(topic_id)
        # An assignment may be older than the deletion of a topic.
        if topic is not None:
            found.append(
                TopicPartitions(
                    topic_id=topic_id, topic_name=topic.name, partitions=sorted(partitions)
                )
            )
    return Assignment(topic_partitions=found)
