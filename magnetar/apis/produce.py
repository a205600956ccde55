"""Produce (API key 0): append one record batch to each of the named partitions.

Versions 3-13.  5: log start offset.  7: zstd (before: UNSUPPORTED_COMPRESSION_TYPE).  8: record
errors and a message.  9: flexible.  10: current leader.  11: an unverified transactional batch is
TRANSACTION_ABORTABLE (before: INVALID_TXN_STATE).  12: partitions are added to the transaction here
(transaction version 2), and a producer that is new to one begins with sequence 0, else
OUT_OF_ORDER_SEQUENCE_NUMBER.  13: topic ids instead of names.

Every partition stands alone: one refused batch refuses nothing else. The answer comes when all that
was appended is durable, for acks=1 and acks=all alike; what is not within the request's timeout (of
which less than 1 s is 1 s) is REQUEST_TIMED_OUT, and stays. acks=0 is not answered, and a refusal
closes its connection.  KIP-98, KIP-890.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from functools import partial
from uuid import UUID

from coordinator.transactions.metadata import TopicPartition
from logstore.partition.log import PartitionLog
from magnetar.apis.mirror import mirror
from magnetar.apis.refusals import log_refusal
from magnetar.apis.registry import handles
from magnetar.apis.transaction_versions import PRODUCE_ABORTABLE_SINCE, PRODUCE_ADDS_SINCE
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError, RecordsRefused
from wire.message import Message
from wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.records import BatchHeader, Compression
from wire.records.header import ATTRIBUTE_COMPRESSION, ATTRIBUTE_TRANSACTIONAL

_ACKS = frozenset({-1, 0, 1})
_ZSTD_SINCE = 7
_TOPIC_IDS_SINCE = 13
#: The time that a sync may take whatever the client says. Kafka with one replica waits for nothing,
#: so there a `timeout_ms` of 0 is never too short.
_TIMEOUT_MS_MIN = 1_000
#: Records of a batch that an answer names, of those that were refused.
_RECORD_ERRORS_MAX = 1_000

#: What an answer waits for: its batch's log, and the future of its sync, None where it is durable.
_Wait = tuple[PartitionLog, PartitionProduceResponse, asyncio.Future[None] | None]


_refuse_each = mirror(ProduceResponse, base_offset=-1)


def _refuse(request: ProduceRequest, version: int, error: KafkaError) -> Message | None:
    """Refuse every partition; a producer with acks=0 reads no response."""
    return None if request.acks == 0 else _refuse_each(request, version, error)


@handles(ProduceRequest, versions="3-13", refuse=_refuse)
def produce(
    services: Services, request: ProduceRequest, context: RequestContext
) -> ProduceResponse | DelayedResponse | None:
    appending = _Appending(services, request, context)
    responses = list(map(appending.append_to, request.topic_data))
    if request.acks == 0:
        if appending.is_any_refused:
            # There is no answer to carry the error: closing tells the producer to refresh.
            context.connection.close()
        return None
    return appending.respond(ProduceResponse(responses=responses))


class _Appending:
    """One request on its way into the partitions; all of it before the wait is one step."""

    __slots__ = (
        "_services",
        "_context",
        "_held",
        "_holder",
        "_request",
        "appended",
        "is_any_refused",
    )

    def __init__(
        self, services: Services, request: ProduceRequest, context: RequestContext
    ) -> None:
        self._services = services
        self._request = request
        self._context = context
        #: Whose transaction holds all partitions of the request, and what makes that durable.
        self._holder: tuple[int, int] | None = None
        self._held: tuple[PartitionLog, int] | None = None
        self.appended: list[tuple[PartitionLog, int, PartitionProduceResponse]] = []
        self.is_any_refused = False

    def append_to(self, topic: TopicProduceData) -> TopicProduceResponse:
        """Append what the request has for one topic, and return the answers to give once that is
        durable."""
        answers = []
        name = topic.name
        try:
            if self._context.version >= _TOPIC_IDS_SINCE:
                name = self._name_of(topic.topic_id)
        except KafkaError as refusal:
            answers = [self._refused(topic, data, refusal) for data in topic.partition_data]
            return TopicProduceResponse(topic_id=topic.topic_id, partition_responses=answers)
        for data in topic.partition_data:
            try:
                answers.append(self._append(name, data))
            except KafkaError as refusal:
                answers.append(self._refused(topic, data, refusal))
        return TopicProduceResponse(
            name=topic.name, topic_id=topic.topic_id, partition_responses=answers
        )

    def _name_of(self, topic_id: UUID) -> str:
        found = self._services.topics.by_id(topic_id)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        return found.name

    def _append(self, topic: str, data: PartitionProduceData) -> PartitionProduceResponse:
        """Append one batch to the page cache; `KafkaError` where nothing was appended."""
        if self._request.acks not in _ACKS:
            raise KafkaError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={self._request.acks} is none of -1, 0, 1"
            )
        log = self._services.topics.partition(topic, data.index)
        if self._services.topics.is_internal(topic):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is written by the broker alone"
            )
        if not data.records:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, "a partition of a Produce carries one batch, not none"
            )
        done = log.append(
            memoryview(data.records),
            self._context.now_ms,
            verify=partial(self._verify, log),
        )
        answer = PartitionProduceResponse(
            index=data.index,
            base_offset=done.base_offset,
            log_append_time_ms=done.log_append_time_ms,
            log_start_offset=done.log_start_offset,
        )
        self.appended.append((log, done.end_offset, answer))
        return answer

    def _verify(self, log: PartitionLog, header: BatchHeader) -> None:
        """Refuse a batch that its client may not send; hold the partition for its transaction."""
        version = self._context.version
        if version < _ZSTD_SINCE and header.attributes & ATTRIBUTE_COMPRESSION == Compression.ZSTD:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd in Produce v{version}, {_ZSTD_SINCE}+",
            )
        if not header.attributes & ATTRIBUTE_TRANSACTIONAL:
            return
        transactions = self._services.transactions
        transactional_id = self._request.transactional_id
        producer = (header.producer_id, header.producer_epoch)
        if version < PRODUCE_ADDS_SINCE:
            self._held = transactions.check_produce(
                transactional_id,
                *producer,
                log.topic,
                log.partition,
                is_abortable_known=version >= PRODUCE_ABORTABLE_SINCE,
            )
        else:
            if self._holder != producer:
                self._held = transactions.hold(transactional_id, *producer, self._partitions())
                self._holder = producer
            log.producers.check_beginning(header)
        if transactional_id is not None:
            transactions.clients.note(transactional_id, self._context)

    def _partitions(self) -> Set[TopicPartition]:
        """Return all partitions of the request that there are: one record adds them together."""
        found: set[TopicPartition] = set()
        topics = self._services.topics
        by_id = self._context.version >= _TOPIC_IDS_SINCE
        for asked in self._request.topic_data:
            topic = topics.by_id(asked.topic_id) if by_id else topics.by_name(asked.name)
            if topic is None or topics.is_internal(topic.name):
                continue
            for data in asked.partition_data:
                if 0 <= data.index < len(topic.partitions):
                    found.add(TopicPartition(topic.name, data.index))
        return found

    def respond(self, response: ProduceResponse) -> ProduceResponse | DelayedResponse:
        """Return `response` for when every append is durable, or the request's time is over.

        A batch that timed out stays in the log: the outcome is unknown to the producer, whose
        retry is recognised by its sequence.
        """
        waits = []
        futures = []
        for log, end_offset, answer in self.appended:
            if (future := log.until_durable(end_offset)) is not None:
                futures.append(future)
            waits.append((log, answer, future))
        held = None
        if self._held is not None:
            shard_log, end_offset = self._held
            if (held := shard_log.until_durable(end_offset)) is not None:
                futures.append(held)
        if not futures:
            return response

        def make(is_late: bool) -> ProduceResponse:
            _settle(waits, held, is_late)
            return response

        timeout_ms = self._request.timeout_ms
        if timeout_ms < _TIMEOUT_MS_MIN:
            timeout_ms = _TIMEOUT_MS_MIN
        return DelayedResponse(futures, timeout_ms / 1000, make)

    def _refused(
        self, topic: TopicProduceData, data: PartitionProduceData, refusal: KafkaError
    ) -> PartitionProduceResponse:
        self.is_any_refused = True
        log_refusal(
            self._services,
            self._context,
            refusal,
            transactional_id=self._request.transactional_id,
            topic=topic.name or str(topic.topic_id),
            partition=data.index,
        )
        answer = PartitionProduceResponse(
            index=data.index,
            error_code=refusal.code,
            base_offset=-1,
            error_message=refusal.detail or None,
        )
        if isinstance(refusal, RecordsRefused):
            name = topic.name or self._name_of(topic.topic_id)
            _name_records(answer, refusal, f"{name}-{data.index}")
        return answer


def _name_records(
    answer: PartitionProduceResponse, refusal: RecordsRefused, partition: str
) -> None:
    """Say which records were refused, and why, in Kafka's words (KIP-467)."""
    reason = f"{refusal.reason} in topic partition {partition}"
    answer.record_errors = [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
        for index in refusal.batch_indexes[:_RECORD_ERRORS_MAX]
    ]
    first = ", ".join(
        f"RecordError(batchIndex={index}, message='{reason}')"
        for index in refusal.batch_indexes[:3]
    )
    answer.error_message = (
        f"One or more records have been rejected due to {len(refusal.batch_indexes)} record errors"
        f" in total, and only showing the first three errors at most: [{first}]"
    )


def _settle(waits: Sequence[_Wait], held: asyncio.Future[None] | None, is_late: bool) -> None:
    """Withdraw the answers whose batches are not durable. Raises what failed the disk."""
    if held is not None and held.done():
        held.result()
    for log, answer, future in waits:
        if future is not None and future.done() and future.exception() is not None:
            if not log.is_deleted:
                future.result()
            _withdraw(answer, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif is_late and not (_is_over(future) and _is_over(held)):
            _withdraw(answer, ErrorCode.REQUEST_TIMED_OUT)


def _is_over(wait: asyncio.Future[None] | None) -> bool:
    """Return whether a wait is over; None stands for one that was over at once."""
    return wait is None or wait.done()


def _withdraw(answer: PartitionProduceResponse, code: ErrorCode) -> None:
    """Answer `code` for a batch that was appended."""
    answer.error_code = code
    answer.base_offset = -1
    answer.log_append_time_ms = -1
