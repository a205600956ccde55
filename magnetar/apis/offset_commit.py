"""OffsetCommit (API key 8): remember how far a group has read.

Versions 2-10.  2-4: a retention time of the client's own.  6: the leader epoch.  7: static members
(KIP-345).  8: flexible.  9: GROUP_ID_NOT_FOUND where a member's group is unknown (before:
ILLEGAL_GENERATION).  10: topic ids instead of names.

Answers when the commit is durable; COORDINATOR_NOT_AVAILABLE where that takes longer than
`offsets.commit.timeout.ms`. Members are checked by id, instance and generation; without
any of these (generation -1) commits are taken while the group has no members.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.groups.committing import Commit, Committer
from coordinator.groups.offsets.committed import CommittedOffset
from logstore.partition.log_config import INT64_MAX
from magnetar.apis.authorization import Each, Whole
from magnetar.apis.committed_topics import find_topic, joined
from magnetar.apis.refusals import log_refused_request
from magnetar.apis.registry import handles
from magnetar.runtime.delayed_response import DelayedResponse, when_durable
from magnetar.runtime.group_offsets import Committed
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic import Topic
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_GROUP_NOT_FOUND_SINCE = 9
_TOPIC_IDS_SINCE = 10


@handles(
    OffsetCommitRequest,
    versions="2-10",
    needs=[
        Whole([Operation.READ], Resource.GROUP, "group_id"),
        Each(Operation.READ, Resource.TOPIC, "topics"),
    ],
)
def offset_commit(
    services: Services, request: OffsetCommitRequest, context: RequestContext
) -> Message | DelayedResponse:
    services.groups.offsets.check_size(request.group_id, request.topics)
    expires_ms = -1
    # Versions 2 to 4 alone bring a retention time; -1 leaves it to the broker.
    if request.retention_time_ms >= 0:
        # As far as a record can tell: a client may ask for all time.
        expires_ms = min(context.now_ms + request.retention_time_ms, INT64_MAX)
    commits: list[Commit] = []
    accepted: list[OffsetCommitResponsePartition] = []
    topics = []
    by_id = context.version >= _TOPIC_IDS_SINCE
    for asked in request.topics:
        topic, missing = find_topic(services, asked, by_id=by_id)
        results = []
        for partition in asked.partitions:
            result = OffsetCommitResponsePartition(partition_index=partition.partition_index)
            results.append(result)
            if topic is None or not 0 <= partition.partition_index < len(topic.partitions):
                result.error_code = missing
                continue
            # In the order of `commits`: the codes come back by position.
            accepted.append(result)
            commits.append(_commit(topic, partition, context.now_ms, expires_ms))
        topics.append(
            OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=results)
        )
    response = OffsetCommitResponse(topics=joined(topics))
    if not commits:
        return response

    def answer(codes: Sequence[ErrorCode]) -> None:
        for result, code in zip(accepted, codes, strict=True):
            result.error_code = code

    try:
        committed = _commit_all(services, request, commits, context.version)
    except KafkaError as refusal:
        # A refusal of the group is that of each commit. Partitions that do not exist keep their
        # code.
        log_refused_request(services, context, request, refusal)
        answer([refusal.code] * len(commits))
        return response
    answer(committed.codes)
    return when_durable(
        response,
        [(committed.log, committed.end_offset)],
        services.groups.offsets.commit_timeout_s,
        lambda: answer([ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(commits)),
    )


def _commit(
    topic: Topic, partition: OffsetCommitRequestPartition, now_ms: int, expires_ms: int
) -> Commit:
    # Not by the constructor, which runs as Python code: a request may have ten thousand.
    committed: CommittedOffset = tuple.__new__(
        CommittedOffset,
        (
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata or "",
            now_ms,
            expires_ms,
            topic.id,
        ),
    )
    return topic.name, partition.partition_index, committed


def _commit_all(
    services: Services, request: OffsetCommitRequest, commits: list[Commit], version: int
) -> Committed:
    committer = Committer(
        group_id=request.group_id,
        member_id=request.member_id,
        generation_id=request.generation_id_or_member_epoch,
        group_instance_id=request.group_instance_id,
    )
    return services.groups.offsets.commit(
        committer, commits, knows_group_not_found=version >= _GROUP_NOT_FOUND_SINCE
    )
