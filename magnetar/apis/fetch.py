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

from collections.abc import Sequence

from logstore.partition.log import PartitionLog
from logstore.partition.reader import Isolation
from magnetar.apis.authorization import require
from magnetar.apis.leader_epochs import UNKNOWN_EPOCH, check_leader_epoch
from magnetar.apis.mirror import mirror
from magnetar.apis.refusals import log_refusal
from magnetar.apis.registry import handles
from magnetar.runtime.fetch_sessions import FetchedPartition, FetchPartitionRequest
from magnetar.runtime.fetching import Fetch, PartitionRead
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.response_memory import HeldResponse
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

TOPIC_IDS_SINCE = 13
_NOT_THERE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


# Records that are null librdkafka cannot read (KAFKA-18646).
@handles(
    FetchRequest, versions="4-18", refuse=mirror(FetchResponse, high_watermark=-1, records=b"")
)
async def fetch(
    services: Services, request: FetchRequest, context: RequestContext
) -> FetchResponse:
    # Before any partition: what the session refuses answers the whole request.
    session = services.fetch_sessions.open(request, context.version, context.now_ms)
    reads = [_resolve(services, asked, context) for asked in session.partitions]
    # Held until the connection has sent the response, not until this handler returns.
    context.held = HeldResponse(services.response_memory)
    await Fetch(
        reads,
        # A level that does not exist must not raise: it reads what is not committed, too.
        Isolation(1 if request.isolation_level == 1 else 0),
        min_bytes=request.min_bytes,
        max_bytes=min(request.max_bytes, services.config.fetch_max_bytes),
        max_wait_ms=request.max_wait_ms,
        held=context.held,
    ).perform()
    _log_refusals(services, context, session.partitions, reads)
    # Not the time of the request: a fetch may have waited for minutes, and its session is used now.
    said = session.respond([_fetched(read) for read in reads], services.clock.now_ms())
    responses: list[FetchableTopicResponse] = []
    for position in said.positions:
        asked = session.partitions[position]
        last = responses[-1] if responses else None
        # Partitions of a topic that are next to one another share an entry, as in Kafka.
        if last is None or last.topic != asked.topic or last.topic_id != asked.topic_id:
            last = FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id)
            responses.append(last)
        last.partitions.append(_answer(asked, reads[position]))
    return FetchResponse(
        error_code=said.error_code, session_id=said.session_id, responses=responses
    )


def _resolve(
    services: Services, asked: FetchPartitionRequest, context: RequestContext
) -> PartitionRead:
    """Find the partition's log and check the client's idea of its leader."""
    try:
        log = _find(services, asked, context)
        check_leader_epoch(log, asked.current_leader_epoch)
        read = PartitionRead(log, asked.fetch_offset, asked.max_bytes)
        if asked.last_fetched_epoch != UNKNOWN_EPOCH:
            read.diverging = _divergence(log, asked)
    except KafkaError as refusal:
        return PartitionRead.refused(refusal)
    return read


def _find(
    services: Services, asked: FetchPartitionRequest, context: RequestContext
) -> PartitionLog:
    name = asked.topic
    # From here on the request has no names.
    if context.version >= TOPIC_IDS_SINCE:
        found = services.topics.by_id(asked.topic_id)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic {asked.topic_id}")
        name = found.name
    # Of each request, also of one that a session leaves out: what was allowed may be no more.
    if services.acls is not None:
        require(services, context, Operation.READ, Resource.TOPIC, name)
    return services.topics.partition(name, asked.partition)


def _divergence(log: PartitionLog, asked: FetchPartitionRequest) -> tuple[int, int] | None:
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


def _log_refusals(
    services: Services,
    context: RequestContext,
    partitions: Sequence[FetchPartitionRequest],
    reads: Sequence[PartitionRead],
) -> None:
    for asked, read in zip(partitions, reads, strict=True):
        if read.error is not None:
            log_refusal(
                services,
                context,
                read.error,
                topic=asked.topic or str(asked.topic_id),
                partition=asked.partition,
                fetch_offset=asked.fetch_offset,
            )


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


def _answer(asked: FetchPartitionRequest, read: PartitionRead) -> PartitionData:
    result = read.result
    if result is None:
        assert read.error is not None, "only what was refused has no result"
        return PartitionData(
            partition_index=asked.partition,
            error_code=read.error.code,
            high_watermark=-1,
            # As in Kafka: none of what is not there, null of what was not read.
            aborted_transactions=[] if read.error.code in _NOT_THERE else None,
            records=b"",
        )
    aborted = None
    if result.aborted is not None:
        aborted = [
            AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in result.aborted
        ]
    answer = PartitionData(
        partition_index=asked.partition,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=aborted,
        records=result.records,
    )
    if read.diverging is not None:
        epoch, end_offset = read.diverging
        answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return answer
