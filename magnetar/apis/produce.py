"""Produce (API key 0): append one record batch to each of the named partitions.

Versions 3-13.  5: log start offset.  7: zstd (before: UNSUPPORTED_COMPRESSION_TYPE).  8: record
errors and a message.  9: flexible.  10: current leader.  11: an unverified transactional batch is
TRANSACTION_ABORTABLE (before: INVALID_TXN_STATE).  12: partitions are added to the transaction here
(transaction version 2), and a producer that is new to one begins with sequence 0, else
OUT_OF_ORDER_SEQUENCE_NUMBER.  13: topic ids instead of names.

For each partition: check the batch, hold the partition for the batch's transaction, append. A
refused batch refuses nothing else. A batch whose check takes long is checked in a thread, and
between many batches others have their turn; the requests behind wait. The answer comes when
everything appended is durable, for acks=1 and acks=all alike. A batch that is not durable within
the request's timeout (at least 1 s) is REQUEST_TIMED_OUT, and stays. acks=0 is not answered; a
refusal closes its connection.
KIP-98, KIP-890.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial

from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from logstore.partition.client_batch import (
    ORDINARY,
    QUICK,
    WHOLE,
    CheckedBatch,
    Effort,
    TakesLong,
)
from logstore.partition.log import PartitionLog
from magnetar.apis.authorization import Whole, may, require
from magnetar.apis.leaders import endpoints
from magnetar.apis.mirror import mirror
from magnetar.apis.partitions_named import partitions_in
from magnetar.apis.record_errors import name_records
from magnetar.apis.refusals import log_refusal
from magnetar.apis.registry import Handled, handles
from magnetar.apis.transaction_versions import PRODUCE_ABORTABLE_SINCE, PRODUCE_ADDS_SINCE
from magnetar.runtime.batch_checks import CHECKS, LONG_CHECKS, Steps
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.holds_elsewhere import HoldsElsewhere, MustAsk
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.leaders import Elsewhere, NotLeader
from magnetar.storage.topic import Topic
from wire.error_code import ErrorCode
from wire.errors import KafkaError, RecordsRefused, RefusedByLog
from wire.message import Message
from wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.records import ATTRIBUTE_TRANSACTIONAL, REFUSED_NAMED_MAX, BatchHeader, Compression

_ACKS = frozenset({-1, 0, 1})
_ZSTD_SINCE = 7
_LEADERS_SINCE = 10
_TOPIC_IDS_SINCE = 13
#: The least time that a sync has, whatever `timeout_ms` says. Kafka with one replica waits for
#: nothing, so there a `timeout_ms` of 0 is never too short.
_TIMEOUT_MS_MIN = 1_000
#: What a client has to try again, as Kafka answers where a verification fails: the transaction's
#: coordinator moves at this moment, or an earlier transaction is not ended yet.
_LATER = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
}
#: What was appended: the batch's log, the end offset after it, the partition's answer.
_Pending = tuple[PartitionLog, int, PartitionProduceResponse]

_refuse_each = mirror(ProduceResponse, base_offset=-1)


def _refuse(request: ProduceRequest, version: int, error: KafkaError) -> Message | None:
    """Refuse every partition; a producer with acks=0 reads no response."""
    return None if request.acks == 0 else _refuse_each(request, version, error)


@handles(
    ProduceRequest,
    versions="3-13",
    refuse=_refuse,
    needs=[Whole([Operation.WRITE], Resource.TRANSACTIONAL_ID, "transactional_id")],
    is_for=partitions_in("topic_data", name="name", partitions="partition_data", index="index"),
)
def produce(services: Services, request: ProduceRequest, context: RequestContext) -> Handled:
    appending = _Appending(services, request, context)
    steps, checks, connection = appending.steps(), services.batch_checks, context.connection
    wait = None
    if connection not in checks.queues:
        wait = next(steps, None)
        if wait is None:
            return appending.respond()
    return checks.perform(connection, wait, steps, appending.respond)


class _Appending:
    """One request on its way into the partitions.

    All of it up to the wait for the syncs is one step, unless a check of a batch takes long, or
    the batches are so many that others are to have their turn.
    """

    __slots__ = (
        "_services",
        "_awaited",
        "_context",
        "_held",
        "_holder",
        "_has_waited",
        "_is_elsewhere",
        "_names_left",
        "_not_held",
        "_pending",
        "_request",
        "_responses",
        "is_any_refused",
    )

    def __init__(
        self, services: Services, request: ProduceRequest, context: RequestContext
    ) -> None:
        self._services = services
        self._request = request
        self._context = context
        #: The producer whose transaction holds all partitions of the request.
        self._holder: tuple[int, int] | None = None
        #: What this was refused with, and so are all further batches: not asked for each, since
        #: each question names all partitions.
        self._not_held: tuple[ErrorCode, str] | None = None
        #: Whether the request has waited between its batches.
        self._has_waited = False
        #: Whether another node coordinates the transaction; None: not asked yet.
        self._is_elsewhere: bool | None = None
        #: The coordinator's log, and the end offset to wait for: then the transaction is durable.
        self._held: tuple[PartitionLog, int] | None = None
        self._responses: list[TopicProduceResponse] = []
        self._pending: list[_Pending] = []
        #: The logs and end offsets to wait for: one of a topic, whose partitions are deleted
        #: together, where one sync covers them all. Each log where not; and for a duplicate, which
        #: waits for its original.
        self._awaited: dict[Topic | PartitionLog, tuple[PartitionLog, int]] = {}
        #: How many more refused records the answer may name: the batches of one request are many.
        self._names_left = REFUSED_NAMED_MAX
        self.is_any_refused = False

    def steps(self) -> Steps:
        """Append all batches; the answers are to be given once they are durable.

        Yields what is to be waited for: each check that takes long, in a thread, and the next turn
        once this one is over. Much may happen meanwhile: the topic may be another one then, and the
        transaction another, or none.
        """
        turns = self._services.turns
        is_first = True
        for asked in self._request.topic_data:
            answers: list[PartitionProduceResponse] = []
            self._responses.append(
                TopicProduceResponse(
                    name=asked.name, topic_id=asked.topic_id, partition_responses=answers
                )
            )
            topic = None
            for data in asked.partition_data:
                # Not before the first batch: a short request asks for no turn.
                if not is_first and turns.is_over():
                    yield turns.give_up
                    topic, self._has_waited = None, True
                is_first = False
                try:
                    topic = topic or self._topic_of(asked)
                    log = self._log_of(topic, data)
                    try:
                        checked = self._check(log, data, QUICK)
                    except TakesLong:
                        checked = yield partial(self._check_aside, log, data)
                        topic = self._topic_of(asked)
                        if self._log_of(topic, data) is not log:
                            raise _unknown(topic, data.index) from None
                        self._has_waited = True
                    try:
                        answers.append(self._append(topic, log, checked))
                    except MustAsk as asking:
                        yield asking.wait
                        topic, self._has_waited = self._topic_of(asked), True
                        if self._log_of(topic, data) is not log:
                            raise _unknown(topic, data.index) from None
                        answers.append(self._append(topic, log, checked))
                except KafkaError as refusal:
                    answers.append(self._refused(asked, topic, data, refusal))

    def _topic_of(self, asked: TopicProduceData) -> Topic:
        if self._context.version >= _TOPIC_IDS_SINCE:
            topic = self._services.topics.by_id(asked.topic_id)
            if topic is None:
                detail = f"no topic has the id {asked.topic_id}"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, detail)
        else:
            topic = self._services.topics.by_name(asked.name)
        if self._services.acls is not None:
            name = asked.name if topic is None else topic.name
            require(self._services, self._context, Operation.WRITE, Resource.TOPIC, name)
        if topic is None:
            detail = f"there is no topic {asked.name}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
        return topic

    def _log_of(self, topic: Topic, data: PartitionProduceData) -> PartitionLog:
        """Return the log of the partition that `data` is for. Raises KafkaError."""
        if not 0 <= data.index < len(topic.partitions):
            raise _unknown(topic, data.index)
        if topic.is_internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is written by the broker alone"
            )
        if not data.records:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, "a partition of a Produce carries one batch, not none"
            )
        # In Kafka's order: what is not there, or carries nothing, is told first.
        if self._request.acks not in _ACKS:
            raise KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={self._request.acks} is not one of -1, 0, 1"
            )
        log = topic.partitions[data.index]
        if isinstance(log, Elsewhere):
            raise NotLeader(topic.name, data.index, log)
        return log

    async def _check_aside(self, log: PartitionLog, data: PartitionProduceData) -> CheckedBatch:
        """Do as `_check`, in a thread."""
        try:
            return await CHECKS.run(partial(self._check, log, data, ORDINARY))
        except TakesLong:
            return await LONG_CHECKS.run(partial(self._check, log, data, WHOLE))

    def _check(self, log: PartitionLog, data: PartitionProduceData, effort: Effort) -> CheckedBatch:
        """Return the batch as the log may store it. Changes nothing. Raises KafkaError, and
        TakesLong beyond `effort`."""
        assert data.records is not None, "as _log_of has seen"
        batch = memoryview(data.records)
        checked = log.check(batch, self._context.now_ms, effort)
        if self._context.version < _ZSTD_SINCE and _is_zstd(batch):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd needs Produce v{_ZSTD_SINCE} or later, not v{self._context.version}",
            )
        return checked

    def _append(
        self, topic: Topic, log: PartitionLog, checked: CheckedBatch
    ) -> PartitionProduceResponse:
        """Append one batch to the page cache. Raises KafkaError, MustAsk; then nothing was
        appended."""
        _, header, now_ms = checked
        self._services.logs.room.check(header.batch_length, now_ms)
        if header.attributes & ATTRIBUTE_TRANSACTIONAL:
            self._hold(log, header)
        base_offset, _, end_offset, append_time_ms, start_offset, is_duplicate = log.append(checked)
        answer = PartitionProduceResponse(
            index=log.partition,
            base_offset=base_offset,
            log_append_time_ms=append_time_ms,
            log_start_offset=start_offset,
        )
        self._pending.append((log, end_offset, answer))
        if log.ledger.is_synced_with_others and not is_duplicate:
            self._awaited[topic] = log, end_offset
        else:
            _, awaited = self._awaited.get(log, (log, 0))
            self._awaited[log] = log, max(awaited, end_offset)
        return answer

    def _hold(self, log: PartitionLog, header: BatchHeader) -> None:
        """Make the producer's transaction hold the partition: the op before its data (KIP-890).

        Raises KafkaError where the coordinator refuses, MustAsk where it is another node.
        """
        version = self._context.version
        holds = self._services.transactions.holds
        transactional_id = self._request.transactional_id
        producer = (header.producer_id, header.producer_epoch)
        if self._not_held is not None:
            raise KafkaError(*self._not_held)
        elsewhere = self._services.holds_elsewhere
        if elsewhere is not None and self._is_held_elsewhere(elsewhere, log, header):
            return
        if version < PRODUCE_ADDS_SINCE:
            self._held = holds.check_produce(
                transactional_id,
                *producer,
                log.topic,
                log.partition,
                is_abortable_known=version >= PRODUCE_ABORTABLE_SINCE,
            )
            return
        if self._held is None:
            self._holder = producer
            try:
                # One record of the coordinator's adds all partitions of the request.
                self._held = holds.hold(transactional_id, *producer, self._partitions())
            except KafkaError as refusal:
                self._not_held = refusal.code, refusal.detail
                raise
        elif self._has_waited or self._holder != producer:
            # The transaction may have ended since: held again in the step of the append.
            partition = TopicPartition(log.topic, log.partition)
            self._held = holds.hold(transactional_id, *producer, {partition})
        log.producers.check_beginning(header)
        if transactional_id is not None:
            self._services.transactions.clients.note(transactional_id, self._context)

    def _is_held_elsewhere(
        self, elsewhere: HoldsElsewhere, log: PartitionLog, header: BatchHeader
    ) -> bool:
        """Return whether another node coordinates the transaction, and holds the partition in it.

        Raises MustAsk where that node has to be asked.
        """
        transactional_id = self._request.transactional_id
        # Once for all batches of one step.
        if self._is_elsewhere is None or self._has_waited:
            self._is_elsewhere = elsewhere.is_elsewhere(transactional_id)
        if not self._is_elsewhere:
            return False
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        partition = TopicPartition(log.topic, log.partition)
        adds = self._context.version >= PRODUCE_ADDS_SINCE
        if elsewhere.holds(transactional_id, *producer, partition):
            if adds:
                log.producers.check_beginning(header)
            return True
        # One question for all partitions of the request.
        asked = self._partitions() if adds else {partition}
        raise MustAsk(partial(self._ask, elsewhere, producer, asked))

    async def _ask(
        self, elsewhere: HoldsElsewhere, producer: ProducerIdentity, asked: Set[TopicPartition]
    ) -> None:
        """Return once another node's coordinator holds the partitions. Raises KafkaError."""
        adds = self._context.version >= PRODUCE_ADDS_SINCE
        try:
            await elsewhere.ask(
                self._request.transactional_id or "",
                producer,
                asked,
                adds=adds,
                is_abortable_known=self._context.version >= PRODUCE_ABORTABLE_SINCE,
                # As Kafka answers where a verification fails: no metadata is asked for.
                unreachable=ErrorCode.NOT_ENOUGH_REPLICAS,
            )
        except KafkaError as refusal:
            if adds:
                self._not_held = refusal.code, refusal.detail
            raise

    def _partitions(self) -> Set[TopicPartition]:
        """Return all partitions of the request that this node leads and the client may write to."""
        found: set[TopicPartition] = set()
        services, context, topics = self._services, self._context, self._services.topics
        by_id = context.version >= _TOPIC_IDS_SINCE
        for asked in self._request.topic_data:
            topic = topics.by_id(asked.topic_id) if by_id else topics.by_name(asked.name)
            if topic is None or topic.is_internal:
                continue
            # The end of the transaction writes a marker to each of its partitions.
            if services.acls is not None and not may(
                services, context, Operation.WRITE, Resource.TOPIC, topic.name
            ):
                continue
            for data in asked.partition_data:
                if 0 <= data.index < len(topic.partitions) and not isinstance(
                    topic.partitions[data.index], Elsewhere
                ):
                    found.add(TopicPartition(topic.name, data.index))
        return found

    def respond(self) -> ProduceResponse | DelayedResponse | None:
        """Return the response for when every append is durable, or the request's time is over.

        A batch that timed out stays in the log: its outcome is unknown to the producer, whose retry
        is recognised by its sequence.
        """
        if self._request.acks == 0:
            if self.is_any_refused:
                # No answer can carry the error: closing tells the producer to refresh its metadata.
                self._context.connection.close()
            return None
        response = ProduceResponse(responses=self._responses)
        if self.is_any_refused and self._context.version >= _LEADERS_SINCE:
            leaders = (
                answer.current_leader.leader_id
                for topic in self._responses
                for answer in topic.partition_responses
            )
            response.node_endpoints = endpoints(
                self._services, self._context, NodeEndpoint, leaders
            )

        timeout_ms = self._request.timeout_ms
        if timeout_ms < _TIMEOUT_MS_MIN:
            timeout_ms = _TIMEOUT_MS_MIN
        settle = partial(_settled, response, self._pending, self._held)
        delayed = DelayedResponse(timeout_ms / 1000, settle)
        for log, end_offset in self._awaited.values():
            delayed.wait_for(log.ledger, end_offset)
        if self._held is not None:
            shard_log, end_offset = self._held
            delayed.wait_for(shard_log.ledger, end_offset)
        return delayed if delayed.waits else response

    def _refused(
        self,
        asked: TopicProduceData,
        topic: Topic | None,
        data: PartitionProduceData,
        refusal: KafkaError,
    ) -> PartitionProduceResponse:
        self.is_any_refused = True
        log_refusal(
            self._services,
            self._context,
            refusal,
            transactional_id=self._request.transactional_id,
            topic=asked.name or asked.topic_id,
            partition=data.index,
        )
        answer = PartitionProduceResponse(
            index=data.index,
            error_code=_LATER.get(refusal.code, refusal.code),
            base_offset=-1,
            error_message=refusal.detail or None,
        )
        if topic is not None and isinstance(refusal, RefusedByLog):
            answer.log_start_offset = self._log_of(topic, data).log_start_offset
        if isinstance(refusal, RecordsRefused):
            name = asked.name if topic is None else topic.name
            name_records(answer, refusal, f"{name}-{data.index}", self._names_left)
            self._names_left -= len(answer.record_errors)
        elif isinstance(refusal, NotLeader) and self._context.version >= _LEADERS_SINCE:
            node_id, epoch = refusal.leader
            answer.current_leader = LeaderIdAndEpoch(leader_id=node_id, leader_epoch=epoch)
        return answer


def _unknown(topic: Topic, index: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"{topic.name} has {len(topic.partitions)} partitions, none is {index}",
    )


def _is_zstd(batch: memoryview) -> bool:
    """Whether the producer compressed a valid batch by zstd, whatever its topic stores."""
    return BatchHeader.parse(batch).compression is Compression.ZSTD


def _settled(
    response: ProduceResponse,
    pending: Sequence[_Pending],
    held: tuple[PartitionLog, int] | None,
    is_late: bool,
) -> ProduceResponse:
    """Return the response without the answers whose batches are not durable: these are withdrawn.

    Raises what failed the disk.
    """
    is_held = held is None or held[0].reader.high_watermark >= held[1]
    if held is not None and not is_held:
        held[0].ledger.check_open()
    for log, end_offset, answer in pending:
        is_durable = log.reader.high_watermark >= end_offset
        if is_durable and is_held:
            continue
        if not is_durable and log.reader.is_gone:
            _withdraw(answer, log.reader.gone.code)
        elif is_late:
            _withdraw(answer, ErrorCode.REQUEST_TIMED_OUT)
        else:
            log.ledger.check_open()
            raise AssertionError("each append was waited for")
    return response


def _withdraw(answer: PartitionProduceResponse, code: ErrorCode) -> None:
    """Answer `code` for a batch that was appended."""
    answer.error_code = code
    answer.base_offset = -1
    answer.log_append_time_ms = -1
