"""DescribeQuorum (API key 55): the voters on the cluster's metadata: the controller (KIP-595).

Versions 0-2.  1: when voters fetched (KIP-836).  2: messages, directories, endpoints (KIP-853).

The catalog stands for Kafka's metadata log: its one voter and leader is the controller, the epoch
is the number of that node's start, and the log's end is the number of changes made. Other nodes
observe: they share the catalog.
"""

from __future__ import annotations

from magnetar.apis.authorization import Whole
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic_names import CLUSTER_METADATA
from wire.error_code import ErrorCode
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)


@handles(
    DescribeQuorumRequest, versions="0-2", needs=[Whole([Operation.DESCRIBE], Resource.CLUSTER)]
)
async def describe_quorum(
    services: Services, request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    is_known = _is_metadata_alone(request)
    response = DescribeQuorumResponse(error_message=None, topics=[])
    async for topic in services.turns.each(request.topics):
        partitions: list[ResponsePartitionData] = []
        async for piece in services.turns.pieces(topic.partitions):
            partitions += [
                _quorum(services, context.now_ms) if is_known else _unknown(each.partition_index)
                for each in piece
            ]
        found = ResponseTopicData(topic_name=topic.topic_name, partitions=partitions)
        response.topics.append(found)
    # Before version 2 the field does not exist, and the encoder refuses a value in it.
    if is_known and context.version >= 2:
        at = context.connection.listener
        # As in Kafka, of the voters alone.
        response.nodes = [
            Node(node_id=node_id, listeners=[Listener(name=at.name, host=host, port=port)])
            for node_id, host, port, _ in services.nodes.addresses(at)
            if node_id == services.nodes.controller_id
        ]
    return response


def _is_metadata_alone(request: DescribeQuorumRequest) -> bool:
    # As Kafka: one other partition in the request makes all of them unknown.
    named = [topic for topic in request.topics if topic.partitions]
    return (
        len(named) == 1
        and named[0].topic_name == CLUSTER_METADATA
        and [each.partition_index for each in named[0].partitions[:2]] == [0]
    )


def _quorum(services: Services, now_ms: int) -> ResponsePartitionData:
    end, nodes = services.catalog.changes.count(), services.nodes
    # All of them have always caught up: they read one catalog.
    states = {
        node_id: ReplicaState(
            replica_id=node_id,
            log_end_offset=end,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        for node_id in nodes.ids
    }
    return ResponsePartitionData(
        error_message=None,
        leader_id=nodes.controller_id,
        leader_epoch=nodes.epoch_of(nodes.controller_id, services.node.epoch),
        high_watermark=end,
        current_voters=[states.pop(nodes.controller_id)],
        observers=[*states.values()],
    )


def _unknown(partition: int) -> ResponsePartitionData:
    return ResponsePartitionData(
        partition_index=partition,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=None,
    )
