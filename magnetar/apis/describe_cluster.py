"""DescribeCluster (API key 60): the brokers of the cluster, without topics.

Versions 0-2.  1: whether brokers or controllers are asked for (KIP-919).  2: fenced brokers
(KIP-1073).

Each node is a broker, and none is ever fenced. Their addresses are those that the listener of this
connection advertises: the client may not reach the others. Controllers have no endpoint of their
own: to ask a broker for them is MISMATCHED_ENDPOINT_TYPE, as in Kafka.
"""

from __future__ import annotations

from magnetar.apis.authorization import cluster_operations
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS = 1
_CONTROLLERS = 2


@handles(DescribeClusterRequest, versions="0-2")
async def describe_cluster(
    services: Services, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    if request.endpoint_type == _CONTROLLERS:
        raise KafkaError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker's endpoint")
    if request.endpoint_type != _BROKERS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"endpoint type {request.endpoint_type}"
        )
    response = DescribeClusterResponse(
        cluster_id=services.node.cluster_id,
        controller_id=services.nodes.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in services.nodes.addresses(context.connection.listener)
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(services, context)
    return response
