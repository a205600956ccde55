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

from coordinator.groups.committing import Committer
from magnetar.apis.authorization import Each, Whole
from magnetar.apis.committed_topics import Found, Read, find_topic, read_commits
from magnetar.apis.partitions_named import OF_GROUP
from magnetar.apis.refusals import log_refused_request
from magnetar.apis.registry import Handled, handles
from magnetar.runtime.delayed_response import DelayedResponse, when_durable
from magnetar.runtime.large_messages import ELEMENTS_AT_ONCE, LARGE_MESSAGES
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.offset_commit import OffsetCommitRequest
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
    return _commit(services, request, context, _read(request, found, context.now_ms))


async def _commit_large(
    services: Services, request: OffsetCommitRequest, context: RequestContext
) -> Message | DelayedResponse:
    """Commit many offsets at once, in a step that does only what has to be one step."""
    by_id = context.version >= _TOPIC_IDS_SINCE

    def prepare() -> Read:
        read = _read(request, found, context.now_ms)
        prepared = services.groups.offsets.prepare(request.group_id, read.commits)
        return read._replace(prepared=prepared)

    found: list[Found] = []
    while True:
        async for asked in services.turns.each(request.topics):
            found.append(find_topic(services, asked, by_id=by_id))
        read = await LARGE_MESSAGES.run(prepare)
        await services.turns.begin()
        # A topic that has gone meanwhile has no offsets any more: its own went with it.
        if all(
            topic is find_topic(services, asked, by_id=by_id)[0]
            for asked, (topic, _) in zip(request.topics, found, strict=True)
        ):
            return _commit(services, request, context, read)
        found.clear()


def _read(request: OffsetCommitRequest, found: Sequence[Found], now_ms: int) -> Read:
    """Return the commits for partitions that exist. For any thread."""
    expires_ms = -1
    # Versions 2 to 4 alone bring a retention time; -1 leaves it to the broker.
    if request.retention_time_ms >= 0:
        # As far as a record can tell: a client may ask for all time.
        expires_ms = min(now_ms + request.retention_time_ms, INT64_MAX)
    return read_commits(request, found, now_ms, expires_ms)


def _commit(
    services: Services, request: OffsetCommitRequest, context: RequestContext, read: Read
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
        committed = offsets.commit(
            committer, read.commits, read.prepared, knows_group_not_found=knows
        )
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
