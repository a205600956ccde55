"""TxnOffsetCommit (API key 28): offsets that are committed if the producer's transaction is.

Versions 0-5.  2: the leader epoch.  3: flexible; member id, instance and generation fence a
consumer that is no member any more (KIP-447).  4: may answer TRANSACTION_ABORTABLE.  5: the group's
partition is added to the transaction here, no AddOffsetsToTxn before (KIP-890).

Refused unless the coordinator holds this producer's ongoing transaction with the group's partition
of `__consumer_offsets` in it. Answers when the offsets are pending, durably; they are visible when
the transaction's marker is. With `transaction.offset.conflict.detection.enable` offsets that
another open transaction holds are refused: TRANSACTION_ABORTABLE, up to version 3
ILLEGAL_GENERATION.
"""

from __future__ import annotations

from coordinator.groups.classic.requests import check_group_id
from coordinator.groups.committing import Commit, Committer
from coordinator.groups.offsets.committed import CommittedOffset
from coordinator.groups.offsets.pending_acks import conflict_code
from magnetar.apis.authorization import Each, Whole
from magnetar.apis.refusals import log_refusal
from magnetar.apis.registry import handles
from magnetar.apis.transaction_versions import (
    TXN_OFFSET_COMMIT_ABORTABLE_SINCE,
    TXN_OFFSET_COMMIT_ADDS_SINCE,
)
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)


@handles(
    TxnOffsetCommitRequest,
    versions="0-5",
    needs=[
        Whole([Operation.WRITE], Resource.TRANSACTIONAL_ID, "transactional_id"),
        Whole([Operation.READ], Resource.GROUP, "group_id"),
        Each(Operation.READ, Resource.TOPIC, "topics"),
    ],
)
async def txn_offset_commit(
    services: Services, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    commits: list[Commit] = []
    accepted: list[TxnOffsetCommitResponsePartition] = []
    topics = []
    for asked in request.topics:
        topic = services.topics.by_name(asked.name)
        results = []
        for partition in asked.partitions:
            index = partition.partition_index
            result = TxnOffsetCommitResponsePartition(partition_index=index)
            results.append(result)
            if topic is None or not 0 <= index < len(topic.partitions):
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            # In the order of `commits`: the codes come back by position.
            accepted.append(result)
            committed = CommittedOffset(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
                context.now_ms,
                topic_id=topic.id,
            )
            commits.append((topic.name, index, committed))
        topics.append(TxnOffsetCommitResponseTopic(name=asked.name, partitions=results))
    if commits:
        codes = await _commit_all(services, request, commits, context)
        for result, code in zip(accepted, codes, strict=True):
            result.error_code = code
    return TxnOffsetCommitResponse(topics=topics)


async def _commit_all(
    services: Services,
    request: TxnOffsetCommitRequest,
    commits: list[Commit],
    context: RequestContext,
) -> list[ErrorCode]:
    version = context.version
    is_abortable_known = version >= TXN_OFFSET_COMMIT_ABORTABLE_SINCE
    committer = Committer(
        group_id=request.group_id,
        member_id=request.member_id,
        generation_id=request.generation_id,
        group_instance_id=request.group_instance_id,
    )
    try:
        check_group_id(request.group_id)
        # No await up to the append: the transaction is ongoing when its offsets become pending.
        producer = (request.transactional_id, request.producer_id, request.producer_epoch)
        # KIP-890: such a producer sends no AddOffsetsToTxn, so the group's partition is added here.
        if version >= TXN_OFFSET_COMMIT_ADDS_SINCE:
            held = services.transactions.hold_offsets(*producer, request.group_id)
        else:
            held = services.transactions.check_offsets(
                *producer, request.group_id, is_abortable_known=is_abortable_known
            )
        codes = await services.groups.offsets.commit_in_transaction(
            committer, request.producer_id, request.producer_epoch, commits
        )
        log, end_offset = held
        # The add was appended in the step of the offsets: mostly one sync has made both durable.
        if log.high_watermark < end_offset:
            await log.durable(end_offset)
        return codes
    except KafkaError as refusal:
        log_refusal(
            services,
            context,
            refusal,
            transactional_id=request.transactional_id,
            group_id=request.group_id,
        )
        code = conflict_code(refusal.code, is_abortable_known=is_abortable_known)
        return [code] * len(commits)
