"""TxnOffsetCommit (API key 28): offsets that are committed if the producer's transaction is.

Versions 0-6.  2: the leader epoch.  3: flexible; member id, instance and generation fence a
consumer that is no member any more (KIP-447).  4: may answer TRANSACTION_ABORTABLE.  5: the group's
partition is added to the transaction here, no AddOffsetsToTxn before (KIP-890).  6: topic ids
instead of names, GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (before: ILLEGAL_GENERATION; KIP-1319).

Refused unless the coordinator holds this producer's ongoing transaction with the group's partition
of `__consumer_offsets` in it. Answers when the offsets are pending, durably; they are visible when
the transaction's marker is; COORDINATOR_NOT_AVAILABLE after `offsets.commit.timeout.ms`.
With `transaction.offset.conflict.detection.enable` offsets that another open transaction holds are
refused: TRANSACTION_ABORTABLE, up to version 3 ILLEGAL_GENERATION.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from coordinator.groups.classic.requests import check_group_id
from coordinator.groups.committing import Commit, Committer
from coordinator.groups.offsets.committed import CommittedOffset
from coordinator.groups.offsets.pending_acks import conflict_code
from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from logstore.partition.log import PartitionLog
from magnetar.apis.authorization import Each, Whole
from magnetar.apis.committed_topics import find_topic, joined
from magnetar.apis.refusals import log_refused_request
from magnetar.apis.registry import Handled, handles
from magnetar.apis.transaction_versions import (
    TXN_OFFSET_COMMIT_ABORTABLE_SINCE,
    TXN_OFFSET_COMMIT_ADDS_SINCE,
)
from magnetar.runtime.batch_checks import Steps
from magnetar.runtime.delayed_response import DelayedResponse, when_durable
from magnetar.runtime.group_offsets import Committed
from magnetar.runtime.holds_elsewhere import HoldsElsewhere
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_GROUP_NOT_FOUND_SINCE = _TOPIC_IDS_SINCE = 6


@handles(
    TxnOffsetCommitRequest,
    versions="0-6",
    needs=[
        Whole([Operation.WRITE], Resource.TRANSACTIONAL_ID, "transactional_id"),
        Whole([Operation.READ], Resource.GROUP, "group_id"),
        Each(Operation.READ, Resource.TOPIC, "topics"),
    ],
)
def txn_offset_commit(
    services: Services, request: TxnOffsetCommitRequest, context: RequestContext
) -> Handled:
    services.groups.offsets.check_size(request.group_id, request.topics)
    elsewhere = services.holds_elsewhere
    if elsewhere is None or not elsewhere.is_elsewhere(request.transactional_id):
        return _commit(services, request, context, None)
    asking = _Asking(services, request, context, elsewhere)
    steps, checks, connection = asking.steps(), services.batch_checks, context.connection
    wait = None
    if connection not in checks.queues:
        wait = next(steps, None)
        if wait is None:
            return asking.respond()
    return checks.perform(connection, wait, steps, asking.respond)


class _Asking:
    """A request whose transaction another node coordinates: it is asked first, unless it has told.

    Later requests of the connection wait behind it.
    """

    def __init__(
        self,
        services: Services,
        request: TxnOffsetCommitRequest,
        context: RequestContext,
        elsewhere: HoldsElsewhere,
    ) -> None:
        self._services = services
        self._request = request
        self._context = context
        self._elsewhere = elsewhere
        self._refusal: KafkaError | None = None

    def steps(self) -> Steps:
        """Yield the wait for the coordinator; commit in `respond`, in the same step."""
        request, version = self._request, self._context.version
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        try:
            check_group_id(request.group_id)
            # Before the transaction holds anything: this may be the wrong node for the group.
            self._services.groups.shards.of(request.group_id)
            partition = _partition_of(self._services, request.group_id)
            if not self._elsewhere.holds(request.transactional_id, *producer, partition):
                yield partial(
                    self._elsewhere.ask,
                    request.transactional_id,
                    producer,
                    {partition},
                    adds=version >= TXN_OFFSET_COMMIT_ADDS_SINCE,
                    is_abortable_known=version >= TXN_OFFSET_COMMIT_ABORTABLE_SINCE,
                    # As Kafka answers: clients try again without looking for the group first.
                    unreachable=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                )
        except KafkaError as refusal:
            self._refusal = refusal

    def respond(self) -> Message | DelayedResponse:
        """Make the offsets pending. In the step in which `steps` ends."""
        return _commit(self._services, self._request, self._context, self._refusal)


def _commit(
    services: Services,
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    refusal_before: KafkaError | None,
) -> Message | DelayedResponse:
    """Make the offsets pending; the answer is for when that is durable.

    `refusal_before`: what every offset is refused with, if anything.
    """
    commits: list[Commit] = []
    accepted: list[TxnOffsetCommitResponsePartition] = []
    topics = []
    by_id = context.version >= _TOPIC_IDS_SINCE
    for asked in request.topics:
        topic, missing = find_topic(services, asked, by_id=by_id)
        results = []
        for partition in asked.partitions:
            index = partition.partition_index
            result = TxnOffsetCommitResponsePartition(partition_index=index)
            results.append(result)
            if topic is None or not 0 <= index < len(topic.partitions):
                result.error_code = missing
                continue
            # In the order of `commits`: the codes come back by position.
            accepted.append(result)
            offset = CommittedOffset(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
                context.now_ms,
                topic_id=topic.id,
            )
            commits.append((topic.name, index, offset))
        topics.append(
            TxnOffsetCommitResponseTopic(
                name=asked.name, topic_id=asked.topic_id, partitions=results
            )
        )
    response = TxnOffsetCommitResponse(topics=joined(topics))
    if not commits:
        return response

    def answer(codes: Sequence[ErrorCode]) -> None:
        for result, code in zip(accepted, codes, strict=True):
            result.error_code = code

    is_abortable_known = context.version >= TXN_OFFSET_COMMIT_ABORTABLE_SINCE
    try:
        committed, held = _commit_all(services, request, commits, context.version, refusal_before)
    except KafkaError as refusal:
        log_refused_request(services, context, request, refusal)
        code = conflict_code(refusal.code, is_abortable_known=is_abortable_known)
        answer([code] * len(commits))
        return response
    answer(committed.codes)
    return when_durable(
        response,
        # The add was appended in the step of the offsets: mostly one sync makes both durable.
        [(committed.log, committed.end_offset), *held],
        services.groups.offsets.commit_timeout_s,
        lambda: answer([ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(commits)),
    )


def _commit_all(
    services: Services,
    request: TxnOffsetCommitRequest,
    commits: list[Commit],
    version: int,
    refusal_before: KafkaError | None,
) -> tuple[Committed, list[tuple[PartitionLog, int]]]:
    """Make the commits pending; return also the log and the end that the hold rests on, if it is
    in a log of this node."""
    if refusal_before is not None:
        raise refusal_before
    committer = Committer(
        group_id=request.group_id,
        member_id=request.member_id,
        generation_id=request.generation_id_or_member_epoch,
        group_instance_id=request.group_instance_id,
    )
    check_group_id(request.group_id)
    held = _hold(services, request, version)
    # No await between the two: the transaction is ongoing when its offsets become pending.
    committed = services.groups.offsets.commit_in_transaction(
        committer,
        request.producer_id,
        request.producer_epoch,
        commits,
        knows_group_not_found=version >= _GROUP_NOT_FOUND_SINCE,
    )
    return committed, held


def _hold(
    services: Services, request: TxnOffsetCommitRequest, version: int
) -> list[tuple[PartitionLog, int]]:
    """Make sure that the producer's transaction holds the group's partition."""
    is_abortable_known = version >= TXN_OFFSET_COMMIT_ABORTABLE_SINCE
    elsewhere = services.holds_elsewhere
    producer = (request.transactional_id, request.producer_id, request.producer_epoch)
    if elsewhere is not None and elsewhere.is_elsewhere(request.transactional_id):
        partition = _partition_of(services, request.group_id)
        # `ask` has returned in this step. Its answer was durable before it came.
        assert elsewhere.holds(*producer, partition)
        return []
    # KIP-890: such a producer sends no AddOffsetsToTxn, so the group's partition is added here.
    if version >= TXN_OFFSET_COMMIT_ADDS_SINCE:
        return [services.transactions.hold_offsets(*producer, request.group_id)]
    return [
        services.transactions.check_offsets(
            *producer, request.group_id, is_abortable_known=is_abortable_known
        )
    ]


def _partition_of(services: Services, group_id: str) -> TopicPartition:
    return TopicPartition(CONSUMER_OFFSETS, services.groups.partition_of(group_id))
