"""Produce (API key 0): append one record batch to each of the named partitions.

Versions 3-11.  5: log start offset.  8: record errors and a message.  9: flexible.  10: current
leader.  11: an unverified transactional batch is TRANSACTION_ABORTABLE (before: INVALID_TXN_STATE).
12 and 13 (implicit adds to the transaction, topic ids) come with transaction version 2.

Every partition stands alone: one refused batch refuses nothing else. The answer comes when all that
was appended is durable, for acks=1 and acks=all alike; acks=0 is not answered, and a refusal closes
its connection.  KIP-98, KIP-890.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from logstore.partition import Appended, PartitionLog
from magnetar.apis.registry import RequestContext, handles
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from wire.records import BatchHeader

if TYPE_CHECKING:
    from magnetar.broker import Broker

_ACKS = frozenset({-1, 0, 1})


@handles(ProduceRequest, versions="3-11")
async def produce(
    broker: Broker, request: ProduceRequest, context: RequestContext
) -> ProduceResponse | None:
    appended: list[tuple[PartitionLog, int, PartitionProduceResponse]] = []
    responses = []
    refused = False
    for topic in request.topic_data:
        answers = []
        for data in topic.partition_data:
            try:
                answer = _append(broker, request, topic.name, data, context, appended)
            except KafkaError as refusal:
                refused = True
                answer = _refusal(data.index, refusal)
            answers.append(answer)
        responses.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
    if request.acks == 0:
        if refused:
            # There is no answer to carry the error: closing tells the producer to refresh.
            context.connection.close()
        return None
    if appended:
        await _until_durable(appended, request.timeout_ms)
    return ProduceResponse(responses=responses)


def _append(
    broker: Broker,
    request: ProduceRequest,
    topic: str,
    data: PartitionProduceData,
    context: RequestContext,
    appended: list[tuple[PartitionLog, int, PartitionProduceResponse]],
) -> PartitionProduceResponse:
    """Append one partition's batch to the page cache; `KafkaError` where nothing was appended."""
    if request.acks not in _ACKS:
        raise KafkaError(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is none of -1, 0, 1"
        )
    log = broker.topics.partition(topic, data.index)
    if broker.topics.is_internal(topic):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is written by the broker alone"
        )
    if not data.records:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "a partition of a Produce carries one batch, not none"
        )
    batch = memoryview(data.records)
    try:
        header = BatchHeader.parse(batch)
    except WireError as malformed:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(malformed)) from malformed
    if header.is_transactional:
        broker.transactions.check_produce(
            request.transactional_id,
            header.producer_id,
            header.producer_epoch,
            topic,
            data.index,
            version=context.version,
        )
    done: Appended = log.append(batch, context.now_ms, header=header)
    answer = PartitionProduceResponse(
        index=data.index,
        base_offset=done.base_offset,
        log_append_time_ms=done.log_append_time_ms,
        log_start_offset=done.log_start_offset,
    )
    appended.append((log, done.end_offset, answer))
    return answer


async def _until_durable(
    appended: list[tuple[PartitionLog, int, PartitionProduceResponse]], timeout_ms: int
) -> None:
    """Return when every append is durable; those that are not within `timeout_ms` answer so.

    A batch that timed out stays in the log: the outcome is unknown to the producer, whose retry is
    recognised by its sequence.
    """
    try:
        async with asyncio.timeout(max(timeout_ms, 0) / 1000):
            for log, end_offset, _ in appended:
                await log.durable(end_offset)
    except TimeoutError:
        for log, end_offset, answer in appended:
            if log.high_watermark < end_offset:
                answer.error_code = ErrorCode.REQUEST_TIMED_OUT
                answer.base_offset = -1


def _refusal(index: int, refusal: KafkaError) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=refusal.code,
        base_offset=-1,
        error_message=refusal.detail or None,
    )
