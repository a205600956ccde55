"""The topic that a commit of offsets is for, by its name or, in later versions, by its id."""

from __future__ import annotations

from magnetar.runtime.services import Services
from magnetar.storage.topic import Topic
from wire.error_code import ErrorCode
from wire.messages.offset_commit import OffsetCommitRequestTopic
from wire.messages.txn_offset_commit import TxnOffsetCommitRequestTopic


def find_topic(
    services: Services,
    asked: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic,
    *,
    by_id: bool,
) -> tuple[Topic | None, ErrorCode]:
    """Return the topic, and the code for partitions that it, or the broker, does not have."""
    if not by_id:
        return services.topics.by_name(asked.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic = services.topics.by_id(asked.topic_id)
    if topic is None:
        return None, ErrorCode.UNKNOWN_TOPIC_ID
    return topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
