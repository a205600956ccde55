"""The new leader in answers: clients go on there without asking for metadata (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.storage.topic import Topic
from wire.error_code import ErrorCode
from wire.messages import describe_topic_partitions, fetch, metadata, produce

EndpointT = TypeVar("EndpointT", fetch.NodeEndpoint, produce.NodeEndpoint)


def endpoints(
    services: Services,
    context: RequestContext,
    endpoint_class: type[EndpointT],
    node_ids: Iterable[int],
) -> list[EndpointT]:
    """Return the addresses of these nodes, as the listener of the connection advertises them.

    -1, which stands for no node, has none.
    """
    wanted = set(node_ids)
    return [
        endpoint_class(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in services.nodes.addresses(context.connection.listener)
        if node_id in wanted
    ]


def tell_replicas(
    services: Services,
    topic: Topic,
    partitions: Iterable[
        metadata.MetadataResponsePartition
        | describe_topic_partitions.DescribeTopicPartitionsResponsePartition
    ],
) -> None:
    """Tell the replicas of a cluster's partitions, and which of them live.

    A partition whose leader is gone has none: clients ask again soon, and another node takes it
    over by then. Nodes of one machine start again, so their clients wait for them, and each
    partition has its leader as the one replica.
    """
    placement = services.topics.placement
    if not placement.moves:
        return
    nodes = placement.nodes
    live = {*nodes.live}
    for one in partitions:
        leader = one.leader_id
        one.replica_nodes = [*topic.replicas(one.partition_index, leader, nodes)]
        one.isr_nodes = [node_id for node_id in one.replica_nodes if node_id in live]
        one.offline_replicas = [node_id for node_id in one.replica_nodes if node_id not in live]
        if leader not in live:
            one.error_code = ErrorCode.LEADER_NOT_AVAILABLE
            one.leader_id = -1
