"""ListOffsets (API key 2): the offset at a point in time, for each of the named partitions.

Versions 1-11.  2: isolation level.  4: leader epochs.  6: flexible.  7: the largest timestamp (-3,
KIP-734).  8: the earliest local offset (-4, KIP-405).  9: the latest tiered offset (-5, KIP-1005).
10: a timeout.  11: the earliest offset that waits for its upload (-6, KIP-1023).

The latest offset is the high watermark, or under read_committed the last stable offset; a timestamp
finds the first record at or after it below that bound, and -3 the latest record below it; both are
looked for in threads. There is no tiered storage, so -4 is the log's start, and -5 and -6 find
nothing. The leader epoch is that of the record at the offset; the leader's own with the latest
offset. CORRUPT_MESSAGE where the records of a batch cannot be read.
"""

from __future__ import annotations

from itertools import chain

from logstore.partition.log import PartitionLog
from logstore.partition.reader import Isolation
from magnetar.apis.authorization import Each
from magnetar.apis.isolation import isolation_of
from magnetar.apis.leader_epochs import check_leader_epoch
from magnetar.apis.partitions_named import partitions_in
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LEADER_EPOCHS_SINCE = 4

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

#: The first request version in which each of the special timestamps may be asked for.
_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


@handles(
    ListOffsetsRequest,
    versions="1-11",
    needs=[Each(Operation.DESCRIBE, Resource.TOPIC, "topics")],
    is_for=partitions_in("topics", name="name", partitions="partitions", index="partition_index"),
)
async def list_offsets(
    services: Services, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    isolation = isolation_of(request)
    topics = []
    each = services.turns.each
    by_topic = await _by_topic(services, request)
    async for name, asked in each(by_topic.items()):
        partitions = []
        # As in Kafka: those that are named twice come last, and once. The two could ask for
        # different offsets.
        once = (item for item in asked.items() if len(item[1]) == 1)
        twice = (item for item in asked.items() if len(item[1]) > 1)
        async for index, timestamps in each(chain(once, twice)):
            try:
                if len(timestamps) > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition is named twice")
                # In Kafka's order: before the partition is looked for.
                _check_timestamp(timestamps[0].timestamp, context.version)
                log = services.topics.partition(name, index)
                answer = await _offset(log, timestamps[0], isolation, context.version)
            except KafkaError as refusal:
                answer = ListOffsetsPartitionResponse(
                    partition_index=index, error_code=refusal.code
                )
            partitions.append(answer)
        topics.append(ListOffsetsTopicResponse(name=name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


async def _by_topic(
    services: Services, request: ListOffsetsRequest
) -> dict[str, dict[int, list[ListOffsetsPartition]]]:
    """Return what is asked of each partition: more than one thing if the client is mistaken.

    A topic without partitions is not answered, as in Kafka.
    """
    found: dict[str, dict[int, list[ListOffsetsPartition]]] = {}
    async for topic in services.turns.each(request.topics):
        async for piece in services.turns.pieces(topic.partitions):
            partitions = found.setdefault(topic.name, {})
            for asked in piece:
                partitions.setdefault(asked.partition_index, []).append(asked)
    return found


def _check_timestamp(timestamp: int, version: int) -> None:
    # `version + 1`: a negative timestamp without a meaning exists in no version.
    if timestamp < 0 and version < _SINCE.get(timestamp, version + 1):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"timestamp {timestamp} does not exist in version {version}",
        )


async def _offset(
    log: PartitionLog, asked: ListOffsetsPartition, isolation: Isolation, version: int
) -> ListOffsetsPartitionResponse:
    check_leader_epoch(log, asked.current_leader_epoch)
    try:
        offset, timestamp, epoch = await _find(log, asked.timestamp, isolation)
    except WireError as damage:
        # Another broker has written that batch: this one accepts no batch that cannot be read.
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(damage)) from None
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        offset=offset,
        timestamp=timestamp,
        # The encoder refuses an epoch in a version that has no field for it.
        leader_epoch=epoch if version >= LEADER_EPOCHS_SINCE else -1,
    )


async def _find(log: PartitionLog, timestamp: int, isolation: Isolation) -> tuple[int, int, int]:
    """Return (offset, timestamp, leader epoch), each -1 where there is none."""
    if timestamp == LATEST:
        return log.reader.bound(isolation), -1, log.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1, log.epoch_at(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if timestamp == MAX_TIMESTAMP:
        found = await log.reader.max_timestamp_offset(isolation)
    else:
        found = await log.reader.offset_for_timestamp(timestamp, isolation)
    return (-1, -1, -1) if found is None else found
