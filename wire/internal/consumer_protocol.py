"""ConsumerProtocolAssignment, ConsumerProtocolSubscription: versions 0-3.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int32


class ConsumerProtocolAssignment(Message, versions="0-3"):
    assigned_partitions: list[TopicPartition] = []
    user_data: bytes | None = None


class TopicPartition(Struct):
    topic: str = ""
    partitions: list[int32] = []


class ConsumerProtocolSubscription(Message, versions="0-3"):
    topics: list[str] = []
    user_data: bytes | None = None
    owned_partitions: list[SubscriptionTopicPartition] = in_versions("1+", ignorable=True)
    generation_id: int32 = in_versions("2+", ignorable=True, default=-1)
    rack_id: str | None = in_versions("3+", ignorable=True, default=None)


class SubscriptionTopicPartition(Struct):
    topic: str = ""
    partitions: list[int32] = []
