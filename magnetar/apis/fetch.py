"""Fetch (API key 1): record batches of many partitions, waiting until there is enough to say.

Versions 4-18.  4: isolation level, aborted transactions.  5: log start offset.  7: fetch sessions
(KIP-227).  9: leader epochs (KIP-320).  12: flexible, diverging epochs.  13: topic ids instead of
names (KIP-516).  15: replica state.  16: node endpoints.  17: directory ids.  18: the follower's
high watermark.  There are no followers here: every fetch is a consumer's.

Batches leave as they lie on the disk. Under read_uncommitted all that is durable is returned, and
no list of aborted transactions; under read_committed what lies below the last stable offset, and
the aborted transactions that overlap it. Each partition that succeeds carries the high watermark,
the last stable offset and the log start offset.  KIP-98.
"""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

from logstore.partition.log import PartitionLog
from logstore.partition.reader import Isolation, PartitionMoved
from magnetar.apis.authorization import require
from magnetar.apis.isolation import isolation_of
from magnetar.apis.leader_epochs import UNKNOWN_EPOCH, check_leader_epoch
from magnetar.apis.leaders import endpoints
from magnetar.apis.mirror import mirror
from magnetar.apis.partitions_named import partitions_in
from magnetar.apis.refusals import log_refusal
from magnetar.apis.registry import Handled, handles
from magnetar.runtime.fetch_sessions import AskedPartition, FetchContext, FetchedPartition
from magnetar.runtime.fetch_watch import PartitionKey
from magnetar.runtime.fetching import WAIT_MS_MAX, Fetch, IdleFetch, PartitionRead
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.response_memory import HeldResponse
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.leaders import NotLeader
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)

_LEADERS_SINCE = 12
_ENDPOINTS_SINCE = 16
#: The refusals of partitions that are looked for in no log.
_NOT_LOOKED_AT = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
#: The tagged fields that a partition's answer leaves out. Shared: nothing changes them, and to make
#: three for each partition costs more than to read it.
_NO_DIVERGENCE, _NO_LEADER, _NO_SNAPSHOT = EpochEndOffset(), LeaderIdAndEpoch(), SnapshotId()


# Records are empty in a refusal: librdkafka cannot read null ones (KAFKA-18646).
@handles(
    FetchRequest,
    versions="4-18",
    refuse=mirror(FetchResponse, high_watermark=-1, records=b""),
    is_for=partitions_in("topics", name="topic", partitions="partitions", index="partition"),
)
def fetch(services: Services, request: FetchRequest, context: RequestContext) -> Handled:
    # Before any partition: what is refused here answers the whole request.
    isolation = isolation_of(request)
    acls = services.acls
    # The client may have lost rights, also on partitions that a request of a session leaves out.
    rights = None if acls is None else (acls.topics_version, context.principal, context.host)
    session = services.fetch_sessions.open(
        request, context.version, services.clock.steady_ms(), rights=rights
    )
    wait_ms = min(request.max_wait_ms, WAIT_MS_MAX)
    ends_at_s = asyncio.get_running_loop().time() + wait_ms / 1000
    go_on = partial(_perform, services, request, context, session, isolation, ends_at_s)
    watch = session.watch
    may_wait = wait_ms > 0 and min(request.min_bytes, request.max_bytes) > 0
    may_wait = may_wait and not context.is_waited_for
    if watch.due or watch.is_empty or not may_wait:
        return go_on()
    nothing = partial(_finish, services, session, [])
    idle = IdleFetch(watch, services.fetch_timers, ends_at_s, go_on, nothing)
    context.give_way = idle.give_way
    return idle.response


async def _perform(
    services: Services,
    request: FetchRequest,
    context: RequestContext,
    session: FetchContext,
    isolation: Isolation,
    ends_at_s: float,
) -> FetchResponse:
    if session.is_overtaken:
        return _finish(services, session, [])
    acls_version = None if services.acls is None else services.acls.topics_version
    bytes_max = min(request.max_bytes, services.config.fetch_max_bytes)
    quota_bytes_max = services.quotas.fetch_bytes_max(context)
    if quota_bytes_max is not None:
        # More would never be within the quota, and the client would get nothing at all.
        bytes_max = min(bytes_max, max(quota_bytes_max, 1))
    # Held until the connection has sent the response, not until this handler returns.
    context.held_response = HeldResponse(services.response_memory, len(session.watch.due))
    performing = Fetch(
        session.watch,
        partial(_begin_read, services, context, session),
        isolation,
        services.fetch_timers,
        services.turns,
        min_bytes=request.min_bytes,
        max_bytes=bytes_max,
        ends_at_s=ends_at_s,
        held=context.held_response,
    )
    context.give_way = performing.give_way
    if context.is_waited_for:
        performing.give_way()
    try:
        await performing.perform()
        if services.acls is not None and services.acls.topics_version != acls_version:
            # What was read before the client lost its right to it. Kafka would answer that.
            for key, read in performing.reads.items():
                if read.error is None:
                    _find_again(services, context, key, read)
        if services.quotas.limits_clients and services.quotas.holds_back(
            context, sum(read.size_bytes for read in performing.reads.values())
        ):
            session.withhold(performing.reads)
            return _finish(services, session, [])
        return await _answer(services, context, session, performing)
    finally:
        context.give_way = None  # It leads to what was read, which leads back to the context.
        performing.end()
        session.release()


async def _answer(
    services: Services, context: RequestContext, session: FetchContext, performing: Fetch
) -> FetchResponse:
    """Answer with the partitions that the client must hear of."""
    responses: list[FetchableTopicResponse] = []
    turns, topic, is_first = services.turns, None, True
    for key, read in performing.reads.items():
        # Not before the first, as in `Turns.each`, whose generator each fetch would pay for.
        if not is_first and turns.is_over():
            await turns.give_up()
        is_first = False
        if read.result is None and read.error is None:
            continue  # The session has ended, or was moved on, before this one's turn.
        if isinstance(read.error, PartitionMoved):
            # For the name of the node that leads it now (KIP-951).
            _find_again(services, context, key, read)
        if read.error is not None:
            asked = session.asked.get(key)
            log_refusal(
                services,
                context,
                read.error,
                topic=key[0],
                partition=key[1],
                fetch_offset=None if asked is None else asked.fetch_offset,
            )
        if session.tell(key, _fetched(read)):
            # Partitions of a topic that are next to one another share an entry, as in Kafka.
            if topic != key[0]:
                topic = key[0]
                responses.append(
                    FetchableTopicResponse(topic=topic)
                    if isinstance(topic, str)
                    else FetchableTopicResponse(topic_id=topic)
                )
            responses[-1].partitions.append(_partition_data(key[1], read, context.version))
    response = _finish(services, session, responses)
    if not services.nodes.is_alone and context.version >= _ENDPOINTS_SINCE:
        leaders = (
            each.current_leader.leader_id for topic in responses for each in topic.partitions
        )
        response.node_endpoints = endpoints(services, context, NodeEndpoint, leaders)
    return response


def _find_again(
    services: Services, context: RequestContext, key: PartitionKey, read: PartitionRead
) -> None:
    """Look for a partition once more, and take back what was read if that is refused by now."""
    try:
        _find(services, context, key)
    except KafkaError as refusal:
        read.refuse(refusal)


def _finish(
    services: Services, session: FetchContext, responses: list[FetchableTopicResponse]
) -> FetchResponse:
    # Not the time of the request: a fetch may have waited for minutes, and its session is used now.
    error_code, session_id = session.finish(services.clock.steady_ms())
    if error_code is not ErrorCode.NONE:
        responses = []
    return FetchResponse(error_code=error_code, session_id=session_id, responses=responses)


def _begin_read(
    services: Services, context: RequestContext, session: FetchContext, key: PartitionKey
) -> PartitionRead:
    """Find the partition's log and check the client's idea of its leader."""
    asked = session.asked[key]
    try:
        log = _find(services, context, key)
        # As in Kafka: here, unlike in other requests, any negative epoch asks for no check.
        check_leader_epoch(log, max(asked.current_leader_epoch, UNKNOWN_EPOCH))
        read = PartitionRead(log, asked.fetch_offset, asked.partition_max_bytes)
        if asked.last_fetched_epoch > UNKNOWN_EPOCH:
            read.diverging = _divergence(log, asked)
    except KafkaError as refusal:
        return PartitionRead.refused(refusal)
    return read


def _find(services: Services, context: RequestContext, key: PartitionKey) -> PartitionLog:
    topic, partition = key
    # Since version 13 requests have no names.
    if isinstance(topic, UUID):
        found = services.topics.by_id(topic)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic {topic}")
        topic = found.name
    if services.acls is not None:
        require(services, context, Operation.READ, Resource.TOPIC, topic)
    return services.topics.partition(topic, partition)


def _divergence(log: PartitionLog, asked: AskedPartition) -> tuple[int, int] | None:
    """Return (epoch, end offset) where the client's log parts from this one, None if it does not.

    Source: KIP-595, as consumers see it: what they read past that offset was truncated.
    """
    # A log never loses what it has shown, unless the disk lost it or its topic was made anew.
    epoch, end_offset = log.end_offset_for_epoch(asked.last_fetched_epoch)
    if epoch < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"no epoch {asked.last_fetched_epoch}")
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return epoch, end_offset
    return None


def _fetched(read: PartitionRead) -> FetchedPartition:
    """Return what the session needs to know of a read."""
    result = read.result
    if result is None:
        assert read.error is not None, "a fetch has read every partition or says why not"
        return FetchedPartition(read.error.code, -1, -1, 0)
    return FetchedPartition(
        ErrorCode.NONE,
        result.high_watermark,
        result.log_start_offset,
        read.size_bytes,
        is_diverging=read.diverging is not None,
    )


def _leader_in(error: KafkaError, version: int) -> LeaderIdAndEpoch:
    if not isinstance(error, NotLeader) or version < _LEADERS_SINCE:
        return _NO_LEADER
    node_id, epoch = error.leader
    return LeaderIdAndEpoch(leader_id=node_id, leader_epoch=epoch)


def _partition_data(partition: int, read: PartitionRead, version: int) -> PartitionData:
    result = read.result
    if result is None:
        assert read.error is not None, "only what was refused has no result"
        return PartitionData(
            partition_index=partition,
            error_code=read.error.code,
            high_watermark=-1,
            # As in Kafka: none of what was not looked at, null of what was not read.
            aborted_transactions=[] if read.error.code in _NOT_LOOKED_AT else None,
            records=b"",
            diverging_epoch=_NO_DIVERGENCE,
            current_leader=_leader_in(read.error, version),
            snapshot_id=_NO_SNAPSHOT,
        )
    aborted = None
    # As in Kafka: where logs part, no records are read.
    if result.aborted is not None and read.diverging is None:
        aborted = [
            AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in result.aborted
        ]
    answer = PartitionData(
        partition_index=partition,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=aborted,
        records=result.records if result.in_file is None else result.in_file,
        diverging_epoch=_NO_DIVERGENCE,
        current_leader=_NO_LEADER,
        snapshot_id=_NO_SNAPSHOT,
    )
    if read.diverging is not None:
        epoch, end_offset = read.diverging
        answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return answer
