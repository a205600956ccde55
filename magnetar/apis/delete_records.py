"""DeleteRecords (API key 21): give up the records below an offset (KIP-107).

Versions 0-2.  2: flexible.

The offset becomes the log's start, durably before the answer; -1 stands for the high watermark,
and an offset below the start changes nothing. Who reads below it then gets OFFSET_OUT_OF_RANGE.
Refused are the coordinators' topics (INVALID_TOPIC_EXCEPTION) and those whose cleanup.policy does
not name `delete` (POLICY_VIOLATION).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.apis.registry import RequestContext, handles
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.delete_records import (
    DeleteRecordsPartition,
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
    response = DeleteRecordsResponse()
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(result)
        for asked in topic.partitions:
            result.partitions.append(_delete(broker, topic.name, asked))
            # Each start is synced: others have their turn before the next one.
            await asyncio.sleep(0)
    return response


def _delete(
    broker: Broker, name: str, asked: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=_NO_LOW_WATERMARK
    )
    try:
        if broker.topics.is_internal(name):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} holds the coordinators' state."
            )
        log = broker.topics.partition(name, asked.partition_index)
        if "delete" not in log.config.cleanup_policy:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{name} does not have cleanup.policy=delete."
            )
        result.low_watermark = log.delete_records(asked.offset)
    except KafkaError as refusal:
        result.error_code = refusal.code
    return result
