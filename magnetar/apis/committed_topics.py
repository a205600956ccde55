"""The topics that commits of offsets are for, by name or by id, and how they are answered."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from magnetar.runtime.services import Services
from magnetar.storage.topic import Topic
from wire.error_code import ErrorCode
from wire.messages.offset_commit import OffsetCommitRequestTopic, OffsetCommitResponseTopic
from wire.messages.offset_delete import OffsetDeleteResponseTopic
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponseTopic,
)
from wire.types import ZERO_UUID

_Answered = TypeVar(
    "_Answered",
    OffsetCommitResponseTopic,
    OffsetDeleteResponseTopic,
    TxnOffsetCommitResponseTopic,
)

#: A topic, and the code for partitions that it, or the broker, does not have.
Found = tuple[Topic | None, ErrorCode]


def find_topic(
    services: Services,
    asked: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic,
    *,
    by_id: bool,
) -> Found:
    """Return the topic, and the code for partitions that it, or the broker, does not have."""
    if not by_id:
        return services.topics.by_name(asked.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic = services.topics.by_id(asked.topic_id)
    if topic is None:
        return None, ErrorCode.UNKNOWN_TOPIC_ID
    return topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def joined(topics: list[_Answered]) -> list[_Answered]:
    """Return the answers to a request, before its commits are made, as Kafka puts them together.

    A topic that the request names twice is answered twice. But where a partition does not exist,
    each topic is answered once, with all of its partitions.
    """
    if len(topics) < 2 or not any(each.error_code for one in topics for each in one.partitions):
        return topics
    once: dict[tuple[str, UUID], _Answered] = {}
    for topic in topics:
        key = topic.name, getattr(topic, "topic_id", ZERO_UUID)
        first = once.setdefault(key, topic)
        if first is not topic:
            first.partitions.extend(topic.partitions)
    return list(once.values())
