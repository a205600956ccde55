"""Who leads, in answers: clients go on at the new leader without asking for metadata (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.messages import fetch, produce

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
    rack = services.config.broker_rack
    return [
        endpoint_class(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port in services.nodes.addresses(context.connection.listener)
        if node_id in wanted
    ]
