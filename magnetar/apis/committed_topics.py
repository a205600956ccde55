"""What requests about committed offsets have in common: their topics, commits and answers.

OffsetCommit and TxnOffsetCommit name offsets in the same way, and are answered in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from coordinator.groups.committing import Commit
from coordinator.groups.offsets.committed import CommittedOffset
from magnetar.runtime.group_offsets import Prepared
from magnetar.runtime.services import Services
from magnetar.storage.topic import Topic
from wire.error_code import ErrorCode
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from wire.messages.offset_delete import OffsetDeleteResponseTopic
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
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

#: The structs of a response: the whole, a topic, a partition.
_STRUCTS: dict[type, tuple[Any, Any, Any]] = {
    OffsetCommitRequest: (
        OffsetCommitResponse,
        OffsetCommitResponseTopic,
        OffsetCommitResponsePartition,
    ),
    TxnOffsetCommitRequest: (
        TxnOffsetCommitResponse,
        TxnOffsetCommitResponseTopic,
        TxnOffsetCommitResponsePartition,
    ),
}


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


class Read(NamedTuple):
    """A request that commits offsets, as far as no group is asked."""

    found: Sequence[Found]
    """The topics that it names."""
    commits: list[Commit]
    accepted: list[OffsetCommitResponsePartition | TxnOffsetCommitResponsePartition]
    """Where the code of each commit goes, by position."""
    response: OffsetCommitResponse | TxnOffsetCommitResponse
    prepared: Prepared | None = None

    def answer(self, codes: Sequence[ErrorCode]) -> None:
        """Answer with a code for each commit."""
        for result, code in zip(self.accepted, codes, strict=True):
            result.error_code = code

    def refuse(self, code: ErrorCode) -> None:
        """Answer each commit with `code`. Partitions that do not exist keep theirs."""
        self.answer([code] * len(self.commits))


def read_commits(
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    found: Sequence[Found],
    now_ms: int,
    expires_ms: int = -1,
) -> Read:
    """Return the commits for partitions that exist. For any thread."""
    response, response_topic, response_partition = _STRUCTS[type(request)]
    # Not by the constructor, which runs as Python code: a request may have ten thousand.
    make = tuple.__new__
    commits: list[Commit] = []
    accepted = []
    topics = []
    named: Sequence[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic] = request.topics
    for asked, (topic, missing) in zip(named, found, strict=True):
        results = []
        for partition in asked.partitions:
            index = partition.partition_index
            result = response_partition(partition_index=index)
            results.append(result)
            if topic is None or not 0 <= index < len(topic.partitions):
                result.error_code = missing
                continue
            accepted.append(result)
            committed = make(
                CommittedOffset,
                (
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    (partition.committed_metadata or "").encode(),
                    now_ms,
                    expires_ms,
                    topic.id,
                ),
            )
            commits.append((topic.name, index, committed))
        topics.append(response_topic(name=asked.name, topic_id=asked.topic_id, partitions=results))
    return Read(found, commits, accepted, response(topics=joined(topics)))


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
