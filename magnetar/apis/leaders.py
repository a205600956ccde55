"""Who leads, in answers: clients go on at the new leader without asking for metadata (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
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


def tell_leaderless(
    services: Services,
    partitions: Iterable[
        metadata.MetadataResponsePartition
        | describe_topic_partitions.DescribeTopicPartitionsResponsePartition
    ],
) -> None:
    """Say of partitions whose leader is gone that they have none: clients ask again soon.

    Another node takes them over. Nodes of one machine start again, so their clients wait for them.
    """
    if not services.topics.placement.moves:
        return
    live = {*services.nodes.ids}
    for one in partitions:
        if one.leader_id not in live:
            one.error_code = ErrorCode.LEADER_NOT_AVAILABLE
            one.offline_replicas = [one.leader_id]
            one.leader_id, one.isr_nodes = -1, []
