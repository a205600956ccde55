"""DescribeProducers (API key 61): the producers that partitions remember.

Version 0.

Each partition stands alone: UNKNOWN_TOPIC_OR_PARTITION, or INVALID_TOPIC_EXCEPTION for a name that
no topic can have. A partition that is named twice is answered once, unlike in Kafka: a small
request must not ask for a large response many times over.

The state is shown once it is durable. -1 stands for no sequence, no marker yet (coordinator epoch),
no open transaction (start offset).  KIP-664.
"""

from __future__ import annotations

from collections.abc import Iterable

from logstore.partition.log import PartitionLog
from magnetar.apis.authorization import Each
from magnetar.apis.refusals import refused_in
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic_names import check_name
from wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

_NO_TRANSACTION = -1


@handles(
    DescribeProducersRequest, versions="0", needs=[Each(Operation.READ, Resource.TOPIC, "topics")]
)
async def describe_producers(
    services: Services, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    each = services.turns.each
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=name,
                partitions=[
                    await _describe(services, name, index) async for index in each(indexes)
                ],
            )
            async for name, indexes in each(asked.items())
        ]
    )


async def _describe(services: Services, topic: str, index: int) -> PartitionResponse:
    response = PartitionResponse(partition_index=index)
    with refused_in(response):
        check_name(topic)
        log = services.topics.partition(topic, index)
        producers: list[ProducerState] = []
        # Ids alone: a pair for each of a million producers takes half a second.
        async for piece in services.turns.pieces([*log.producers]):
            producers += _described(log, piece)
        # Read before the wait: what is appended meanwhile is not durable after it.
        await log.durable(log.log_end_offset)
        response.active_producers = producers
    return response


def _described(log: PartitionLog, producer_ids: Iterable[int]) -> list[ProducerState]:
    described = []
    for producer_id in producer_ids:
        state = log.producers.get(producer_id)
        if state is None:
            continue  # It has expired since the list was made.
        transaction = log.transactions.open_transaction(producer_id)
        described.append(
            ProducerState(
                producer_id=producer_id,
                producer_epoch=state.producer_epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=(
                    _NO_TRANSACTION if transaction is None else transaction.first_offset
                ),
            )
        )
    return described
