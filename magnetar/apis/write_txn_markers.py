"""WriteTxnMarkers (API key 27): carry a coordinator's decision into partitions of this broker.

Versions 1-2.  2: the transaction version: from 2 on a marker's epoch must be later than that of the
data it ends (KIP-1228).

Each partition answers for itself; a marker is answered when it is durable and visible. In
`__consumer_offsets` it resolves the transaction's pending acks. A coordinator epoch above this
broker's own is INVALID_REQUEST: a partition that believed it would fence its coordinator. With
several nodes that is an epoch above the one of the producer's last marker here.  KIP-98.
"""

from __future__ import annotations

from coordinator.transactions.metadata import TopicPartition
from logstore.partition.log import PartitionLog
from logstore.partition.reader import PartitionGone
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.apis.authorization import Whole
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

#: A marker in a log: the log's end offset after it (exclusive), and the result that tells of it.
_Appended = tuple[PartitionLog, int, WritableTxnMarkerPartitionResult]


@handles(
    WriteTxnMarkersRequest,
    versions="1-2",
    needs=[Whole([Operation.CLUSTER_ACTION, Operation.ALTER], Resource.CLUSTER)],
)
async def write_txn_markers(
    services: Services, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    appended: list[_Appended] = []
    # All markers are appended before the first wait for a sync, so that one sync covers them.
    results = [
        await _append(services, marker, context.now_ms, appended)
        async for marker in services.turns.each(request.markers)
    ]
    for log, end_offset, result in appended:
        try:
            await log.durable(end_offset)
        # The topic was deleted, or its partition has moved, while the marker waited for the sync.
        except PartitionGone as gone:
            result.error_code = gone.code
    return WriteTxnMarkersResponse(markers=results)


async def _append(
    services: Services,
    asked: WritableTxnMarker,
    now_ms: int,
    appended: list[_Appended],
) -> WritableTxnMarkerResult:
    """Append one producer's marker to its partitions; add what is to be awaited to `appended`.

    Other requests may have their turn between two partitions: each marker stands alone, and does no
    harm if it comes again.
    """
    marker = TransactionMarker(
        asked.producer_id,
        asked.producer_epoch,
        asked.coordinator_epoch,
        asked.transaction_result,
        asked.transaction_version,
    )
    topics = []
    async for topic in services.turns.each(asked.topics):
        partitions = []
        async for index in services.turns.each(topic.partition_indexes):
            result = WritableTxnMarkerPartitionResult(partition_index=index)
            try:
                # Before the append: a partition that took a wrong coordinator's epoch would refuse
                # its true coordinator for good.
                _check(services, topic.name, index, marker)
                log, end_offset = services.participants.append_marker(
                    TopicPartition(topic.name, index), marker, now_ms
                )
            except KafkaError as refusal:
                result.error_code = refusal.code
            else:
                appended.append((log, end_offset, result))
            partitions.append(result)
        topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)


def _check(services: Services, topic: str, index: int, marker: TransactionMarker) -> None:
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        # No data has such a producer, and Kafka could not open a log with the marker.
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {marker.producer_id} with epoch {marker.producer_epoch} has no transactions",
        )
    log = services.topics.partition(topic, index)
    # All partitions of one start have the same epoch. But several nodes count their own, and a
    # partition that moves has a later one than its coordinator.
    known_epoch = log.leader_epoch if services.topics.placement.is_alone else 0
    if (state := log.producers.get(marker.producer_id)) is not None:
        known_epoch = max(known_epoch, state.coordinator_epoch)
    coordinator_epoch = marker.coordinator_epoch
    if coordinator_epoch > known_epoch:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"coordinator epoch {coordinator_epoch} lies in the future: the last is {known_epoch}",
        )
