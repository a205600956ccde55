"""TxnOffsetCommit (API key 28): offsets that are committed if the producer's transaction is.

Versions 0-6.  2: the leader epoch.  3: flexible; member id, instance and generation fence a
consumer that is no member any more (KIP-447).  4: may answer TRANSACTION_ABORTABLE.  5: the group's
partition is added to the transaction here, no AddOffsetsToTxn before (KIP-890).  6: topic ids
instead of names, GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (before: ILLEGAL_GENERATION; KIP-1319).

A large commit is prepared in a thread, as that of OffsetCommit.
Refused unless the coordinator holds this producer's ongoing transaction with the group's partition
of `__consumer_offsets` in it. Answers when the offsets are pending, durably; they are visible when
the transaction's marker is; COORDINATOR_NOT_AVAILABLE after `offsets.commit.timeout.ms`.
With `transaction.offset.conflict.detection.enable` offsets that another open transaction holds are
refused: TRANSACTION_ABORTABLE, up to version 3 ILLEGAL_GENERATION.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial

from coordinator.groups.classic.requests import check_group_id
from coordinator.groups.committing import Committer
from coordinator.groups.offsets.pending_acks import conflict_code
from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from logstore.partition.log import PartitionLog
from magnetar.apis.authorization import Each, Whole
from magnetar.apis.committed_topics import Read, find_topic, read_commits
from magnetar.apis.partitions_named import OF_GROUP
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
from magnetar.runtime.large_messages import ELEMENTS_AT_ONCE, LARGE_MESSAGES
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.txn_offset_commit import TxnOffsetCommitRequest

_GROUP_NOT_FOUND_SINCE = _TOPIC_IDS_SINCE = 6


@handles(
    TxnOffsetCommitRequest,
    versions="0-6",
    needs=[
        Whole([Operation.WRITE], Resource.TRANSACTIONAL_ID, "transactional_id"),
        Whole([Operation.READ], Resource.GROUP, "group_id"),
        Each(Operation.READ, Resource.TOPIC, "topics"),
    ],
    is_for=OF_GROUP,
)
def txn_offset_commit(
    services: Services, request: TxnOffsetCommitRequest, context: RequestContext
) -> Handled:
    count = services.groups.offsets.check_size(request.group_id, request.topics)
    # The dispatcher runs no other request of a connection beside one so large: their order stays.
    if count > ELEMENTS_AT_ONCE:
        return _commit_large(services, request, context)
    return _hold_and_commit(services, request, context, None)


async def _commit_large(
    services: Services, request: TxnOffsetCommitRequest, context: RequestContext
) -> Message | DelayedResponse | None:
    """Commit many offsets at once, in a step that does only what has to be one step."""
    by_id = context.version >= _TOPIC_IDS_SINCE
    found = [
        find_topic(services, asked, by_id=by_id)
        async for asked in services.turns.each(request.topics)
    ]

    def prepare() -> Read:
        read = read_commits(request, found, context.now_ms)
        prepared = services.groups.offsets.prepare(request.group_id, read.commits)
        return read._replace(prepared=prepared)

    read = await LARGE_MESSAGES.run(prepare)
    await services.turns.begin()
    handled = _hold_and_commit(services, request, context, read)
    return await handled if isinstance(handled, Coroutine) else handled


def _hold_and_commit(
    services: Services,
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    read: Read | None,
) -> Handled:
    elsewhere = services.holds_elsewhere
    if elsewhere is None or not elsewhere.is_elsewhere(request.transactional_id):
        return _commit(services, request, context, read, None)
    asking = _Asking(services, request, context, read, elsewhere)
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
        read: Read | None,
        elsewhere: HoldsElsewhere,
    ) -> None:
        self._services = services
        self._request = request
        self._context = context
        self._read = read
        self._elsewhere = elsewhere
        self._refusal: tuple[ErrorCode, str] | None = None

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
            # Not the error: its traceback leads to this object, a cycle that would not be freed.
            self._refusal = (refusal.code, refusal.detail)

    def respond(self) -> Message | DelayedResponse:
        """Make the offsets pending. In the step in which `steps` ends."""
        return _commit(self._services, self._request, self._context, self._read, self._refusal)


def _commit(
    services: Services,
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    read_before: Read | None,
    refusal_before: tuple[ErrorCode, str] | None,
) -> Message | DelayedResponse:
    """Make the offsets pending in this step; the answer is for when that is durable.

    `read_before`: the request, where it was read in a thread. `refusal_before`: code and
    detail of what every offset is refused with, if anything.
    """
    by_id = context.version >= _TOPIC_IDS_SINCE
    found = [find_topic(services, asked, by_id=by_id) for asked in request.topics]
    read = read_before
    # A topic that has gone meanwhile has no offsets any more: its own went with it.
    if read is None or any(
        topic is not before for (topic, _), (before, _) in zip(found, read.found, strict=True)
    ):
        read = read_commits(request, found, context.now_ms)
    if not read.commits:
        return read.response
    is_abortable_known = context.version >= TXN_OFFSET_COMMIT_ABORTABLE_SINCE
    try:
        committed, held = _commit_all(services, request, read, context.version, refusal_before)
    except KafkaError as refusal:
        log_refused_request(services, context, request, refusal)
        read.refuse(conflict_code(refusal.code, is_abortable_known=is_abortable_known))
        return read.response
    read.answer(committed.codes)
    return when_durable(
        read.response,
        # The add was appended in the step of the offsets: mostly one sync makes both durable.
        [(committed.log, committed.end_offset), *held],
        services.groups.offsets.commit_timeout_s,
        partial(read.refuse, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    )


def _commit_all(
    services: Services,
    request: TxnOffsetCommitRequest,
    read: Read,
    version: int,
    refusal_before: tuple[ErrorCode, str] | None,
) -> tuple[Committed, list[tuple[PartitionLog, int]]]:
    """Make the commits pending; return also the log and the end that the hold rests on, if it is
    in a log of this node."""
    if refusal_before is not None:
        raise KafkaError(*refusal_before)
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
        read.commits,
        read.prepared,
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
        # `steps` has ended in this step. The add was ordered before the coordinator answered, and
        # the offsets rest on it (`magnetar.runtime.bases`).
        assert elsewhere.holds(*producer, partition)
        return []
    # KIP-890: such a producer sends no AddOffsetsToTxn, so the group's partition is added here.
    if version >= TXN_OFFSET_COMMIT_ADDS_SINCE:
        return [services.transactions.holds.hold_offsets(*producer, request.group_id)]
    return [
        services.transactions.holds.check_offsets(
            *producer, request.group_id, is_abortable_known=is_abortable_known
        )
    ]


def _partition_of(services: Services, group_id: str) -> TopicPartition:
    return TopicPartition(CONSUMER_OFFSETS, services.groups.shards.partition_of(group_id))
