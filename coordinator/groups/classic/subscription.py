"""Which topics the members of a consumer group read: from what they said when they joined."""

from __future__ import annotations

from coordinator.groups.classic.group import ClassicGroup
from wire.errors import WireError
from wire.internal.consumer_protocol import ConsumerProtocolSubscription
from wire.internal.versioned import peek_version

#: The protocol type of consumers; others (Connect's, for one) mean something else by metadata.
CONSUMER = "consumer"


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """Return the topics that some member has subscribed to; None where that cannot be known.

    Versions beyond ours begin as ours do, so what follows is passed over, as Kafka does.
    """
    if group.protocol_type != CONSUMER:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        metadata = member.metadata(group.protocol_name)
        try:
            version = min(peek_version(metadata), ConsumerProtocolSubscription.max_version)
            subscription, _ = ConsumerProtocolSubscription.decode_from(metadata, version, 2)
        except WireError:
            return None
        topics.update(subscription.topics)
    return frozenset(topics)
