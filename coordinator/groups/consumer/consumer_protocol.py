"""Subscriptions and assignments as bytes: the consumer protocol, which classic groups carry.

Bytes of a version newer than ours begin like ours. The rest of such bytes is ignored, as in Kafka.
Two bytes can name a topic, so a bound limits what is read: a client may send anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from coordinator.groups.classic.group import ClassicGroup
from coordinator.groups.consumer.member import Owned, Target
from coordinator.groups.consumer.subscription import TopicImage
from wire.errors import WireError
from wire.internal.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    SubscriptionTopicPartition,
    TopicPartition,
)
from wire.internal.versioned import decode_compatible, encode_versioned, peek_version

#: The protocol type of consumers. Other types, such as Connect's, have other metadata.
CONSUMER = "consumer"
#: The topics and partitions that one member may name, and all members of a group. It takes some 10
#: and 50 ms to read so many.
MEMBER_ELEMENTS_MAX = 1 << 16
GROUP_ELEMENTS_MAX = 1 << 18


class Subscription(NamedTuple):
    """The metadata of a classic member's JoinGroup. With an eager assignor `owned` is empty."""

    topic_names: frozenset[str]
    rack_id: str | None
    owned: Owned


def read_subscription(metadata: bytes, topics: TopicImage) -> Subscription:
    """Return the subscription in the bytes; `owned` leaves unknown topics out. Raises WireError."""
    return next(read_subscriptions([metadata], topics))


def read_subscriptions(metadata: Iterable[bytes], topics: TopicImage) -> Iterator[Subscription]:
    """Yield the subscription of each member of a group, as `read_subscription`. Raises WireError.

    The bound is the whole group's.
    """
    for said in _subscriptions(metadata):
        owned = ((each.topic, each.partitions) for each in said.owned_partitions)
        rack_id = said.rack_id or None
        yield Subscription(frozenset(said.topics), rack_id, _by_id(owned, topics))


def _subscriptions(metadata: Iterable[bytes]) -> Iterator[ConsumerProtocolSubscription]:
    metadata = [*metadata]
    left = GROUP_ELEMENTS_MAX
    # Counted before any is read: to find out by reading would take as long as the bound allows.
    if sum(map(_topic_count, metadata)) > left:
        raise WireError(f"the members of a group name more than {left} topics")
    for each in metadata:
        bound = min(left, MEMBER_ELEMENTS_MAX)
        said = decode_compatible(ConsumerProtocolSubscription, each, bound)
        left -= len(said.topics) + _element_count(said.owned_partitions)
        yield said


def _topic_count(metadata: bytes) -> int:
    """Return how many topics a subscription says it names, by an int32 after its version."""
    return max(int.from_bytes(metadata[2:6], "big", signed=True), 0)


def _element_count(named: Sequence[TopicPartition | SubscriptionTopicPartition]) -> int:
    return len(named) + sum(len(each.partitions) for each in named)


class CustomAssignor(ValueError):
    """An assignment carries user data of a client's own assignor, which would be lost."""


def read_assignments(assignments: Iterable[bytes], topics: TopicImage) -> Iterator[Target]:
    """Yield the partitions that the bytes assign to each member. Empty bytes assign none.

    Raises WireError, CustomAssignor.
    """
    left = GROUP_ELEMENTS_MAX
    for each in assignments:
        if not each:
            yield {}
            continue
        bound = min(left, MEMBER_ELEMENTS_MAX)
        given = decode_compatible(ConsumerProtocolAssignment, each, bound)
        if given.user_data:
            raise CustomAssignor
        left -= _element_count(given.assigned_partitions)
        yield _by_id(((each.topic, each.partitions) for each in given.assigned_partitions), topics)


def write_assignment(target: Target, subscription: bytes, topics: TopicImage) -> bytes:
    """Return the bytes that assign `target`, in the version of the member's subscription.

    Where `subscription` has no readable version, the assignment has version 0. That may happen: a
    member's JoinGroup may name several protocols, and only the first one's subscription is checked.
    """
    version = min(_version_of(subscription), ConsumerProtocolAssignment.max_version)
    assigned = []
    for topic_id, partitions in target.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            assigned.append(TopicPartition(topic=topic.name, partitions=sorted(partitions)))
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=assigned), version)


def _version_of(subscription: bytes) -> int:
    try:
        return max(peek_version(subscription), 0)
    except WireError:
        return 0


def _by_id(named: Iterable[tuple[str, list[int]]], topics: TopicImage) -> Target:
    found: dict[UUID, frozenset[int]] = {}
    for name, partitions in named:
        topic = topics.by_name(name)
        if topic is None:
            continue
        # A client may name any number: partitions that do not exist are left out.
        existing = frozenset(p for p in partitions if 0 <= p < topic.partition_count)
        if existing:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | existing
    return found


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """Return the topics that members of a classic group read.

    None: they cannot be known. The group is not of consumers, or a subscription is damaged, or the
    subscriptions are too large.
    """
    if group.protocol_type != CONSUMER:
        return None
    # Most members say the same: that is read once.
    metadata = {member.metadata(group.protocol_name) for member in group.members.values()}
    try:
        return frozenset(name for said in _subscriptions(metadata) for name in said.topics)
    except WireError:
        return None
