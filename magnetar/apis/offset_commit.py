"""OffsetCommit (API key 8): remember how far a group has read.

Versions 2-10.  2-4: a retention time of the client's own.  6: the leader epoch.  7: static members
(KIP-345).  8: flexible.  9: GROUP_ID_NOT_FOUND where a member's group is unknown (before:
ILLEGAL_GENERATION).  10: topic ids instead of names.

A large commit is prepared in a thread, so that it holds no other request up.
Answers when the commit is durable; COORDINATOR_NOT_AVAILABLE where that takes longer than
`offsets.commit.timeout.ms`. Members are checked by id, instance and generation; without
any of these (generation -1) commits are taken while the group has no members.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from coordinator.groups.committing import Commit, Committer
from coordinator.groups.offsets.committed import CommittedOffset
from magnetar.apis.authorization import Each, Whole
from magnetar.apis.committed_topics import Found, find_topic, joined
from magnetar.apis.partitions_named import OF_GROUP
from magnetar.apis.refusals import log_refused_request
from magnetar.apis.registry import Handled, handles
from magnetar.runtime.delayed_response import DelayedResponse, when_durable
from magnetar.runtime.group_offsets import Prepared
from magnetar.runtime.large_messages import ELEMENTS_AT_ONCE, LARGE_MESSAGES
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
from wire.types import INT64_MAX

_GROUP_NOT_FOUND_SINCE = 9
_TOPIC_IDS_SINCE = 10


@handles(
    OffsetCommitRequest,
    versions="2-10",
    needs=[
        Whole([Operation.READ], Resource.GROUP, "group_id"),
        Each(Operation.READ, Resource.TOPIC, "topics"),
    ],
    is_for=OF_GROUP,
)
def offset_commit(
    services: Services, request: OffsetCommitRequest, context: RequestContext
) -> Handled:
    count = services.groups.offsets.check_size(request.group_id, request.topics)
    # The dispatcher runs no other request of a connection beside one so large: their order stays.
    if count > ELEMENTS_AT_ONCE:
        return _commit_large(services, request, context)
    by_id = context.version >= _TOPIC_IDS_SINCE
    found = [find_topic(services, asked, by_id=by_id) for asked in request.topics]
    read = _read(request, found, context.now_ms)
    return _commit(services, request, context, read, None)


async def _commit_large(
    services: Services, request: OffsetCommitRequest, context: RequestContext
) -> Message | DelayedResponse:
    """Commit many offsets at once, in a step that does only what has to be one step."""
    by_id = context.version >= _TOPIC_IDS_SINCE
    offsets = services.groups.offsets

    def prepare() -> tuple[_Read, Prepared]:
        read = _read(request, found, context.now_ms)
        return read, offsets.prepare(request.group_id, read.commits)

    found: list[Found] = []
    while True:
        async for asked in services.turns.each(request.topics):
            found.append(find_topic(services, asked, by_id=by_id))
        read, prepared = await LARGE_MESSAGES.run(prepare)
        await services.turns.begin()
        # A topic that has gone meanwhile has no offsets any more: its own went with it.
        if all(
            topic is find_topic(services, asked, by_id=by_id)[0]
            for asked, (topic, _) in zip(request.topics, found, strict=True)
        ):
            return _commit(services, request, context, read, prepared)
        found.clear()


class _Read(NamedTuple):
    """A request, as far as no group is asked."""

    commits: list[Commit]
    accepted: list[OffsetCommitResponsePartition]
    """Where the code of each commit goes, by position."""
    response: OffsetCommitResponse

    def answer(self, codes: Sequence[ErrorCode]) -> None:
        """Answer with a code for each commit."""
        for result, code in zip(self.accepted, codes, strict=True):
            result.error_code = code

    def refuse(self, code: ErrorCode) -> None:
        """Answer each commit with `code`. Partitions that do not exist keep theirs."""
        self.answer([code] * len(self.commits))


def _read(request: OffsetCommitRequest, found: Sequence[Found], now_ms: int) -> _Read:
    """Return the commits for partitions that exist. For any thread."""
    expires_ms = -1
    # Versions 2 to 4 alone bring a retention time; -1 leaves it to the broker.
    if request.retention_time_ms >= 0:
        # As far as a record can tell: a client may ask for all time.
        expires_ms = min(now_ms + request.retention_time_ms, INT64_MAX)
    commits: list[Commit] = []
    accepted: list[OffsetCommitResponsePartition] = []
    topics = []
    for asked, (topic, missing) in zip(request.topics, found, strict=True):
        results = []
        for partition in asked.partitions:
            result = OffsetCommitResponsePartition(partition_index=partition.partition_index)
            results.append(result)
            if topic is None or not 0 <= partition.partition_index < len(topic.partitions):
                result.error_code = missing
                continue
            accepted.append(result)
            commits.append(_commit_of(topic, partition, now_ms, expires_ms))
        topics.append(
            OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=results)
        )
    return _Read(commits, accepted, OffsetCommitResponse(topics=joined(topics)))


def _commit(
    services: Services,
    request: OffsetCommitRequest,
    context: RequestContext,
    read: _Read,
    prepared: Prepared | None,
) -> Message | DelayedResponse:
    """Commit in this step; the answer is for when that is durable."""
    if not read.commits:
        return read.response
    offsets = services.groups.offsets
    committer = Committer(
        group_id=request.group_id,
        member_id=request.member_id,
        generation_id=request.generation_id_or_member_epoch,
        group_instance_id=request.group_instance_id,
    )
    knows = context.version >= _GROUP_NOT_FOUND_SINCE
    try:
        committed = offsets.commit(committer, read.commits, prepared, knows_group_not_found=knows)
    except KafkaError as refusal:
        # A refusal of the group is that of each commit.
        log_refused_request(services, context, request, refusal)
        read.refuse(refusal.code)
        return read.response
    read.answer(committed.codes)
    return when_durable(
        read.response,
        [(committed.log, committed.end_offset)],
        offsets.commit_timeout_s,
        partial(read.refuse, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    )


def _commit_of(
    topic: Topic, partition: OffsetCommitRequestPartition, now_ms: int, expires_ms: int
) -> Commit:
    # Not by the constructor, which runs as Python code: a request may have ten thousand.
    committed: CommittedOffset = tuple.__new__(
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
    return topic.name, partition.partition_index, committed
