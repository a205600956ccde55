"""DeleteRecords (API key 21): give up the records below an offset (KIP-107).

Versions 0-2.  2: flexible.

The offset becomes the log's start, durably before the answer; -1 stands for the high watermark,
and an offset below the start changes nothing. Who reads below it then gets OFFSET_OUT_OF_RANGE.
Refused are the coordinators' topics (INVALID_TOPIC_EXCEPTION) and those that are compacted only
(POLICY_VIOLATION). Of a partition that is named twice the last offset counts, as in Kafka.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.apis.registry import RequestContext, handles
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from magnetar.broker import Broker

_NO_LOW_WATERMARK = -1


@handles(DeleteRecordsRequest, versions="0-2")
async def delete_records(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    offsets: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        for each in topic.partitions:
            offsets.setdefault(topic.name, {})[each.partition_index] = each.offset
    response = DeleteRecordsResponse()
    for name, partitions in offsets.items():
        result = DeleteRecordsTopicResult(name=name)
        response.topics.append(result)
        for index, offset in partitions.items():
            result.partitions.append(_delete(broker, name, index, offset))
            # Each start is synced: others have their turn before the next one.
            await asyncio.sleep(0)
    return response


def _delete(broker: Broker, name: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=index, low_watermark=_NO_LOW_WATERMARK)
    try:
        if broker.topics.is_internal(name):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} holds the coordinators' state."
            )
        log = broker.topics.partition(name, index)
        if log.config.cleanup_policy == {"compact"}:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{name} has cleanup.policy=compact.")
        result.low_watermark = log.delete_records(offset)
    except KafkaError as refusal:
        result.error_code = refusal.code
    return result
