"""The brokers of a cluster, from DescribeCluster (KIP-700)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.client.cluster import Client
from magnetar.client.errors import check
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse


@dataclass(frozen=True)
class Node:
    """A broker, with the address that it advertises on the listener that the client uses."""

    node_id: int
    host: str
    port: int
    rack: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "node_id": self.node_id,
            "host": self.host,
            "port": self.port,
            "rack": self.rack,
        }


@dataclass(frozen=True)
class Cluster:
    """A cluster. `controller_id` is -1 while the cluster has no controller."""

    cluster_id: str
    controller_id: int
    nodes: Sequence[Node]


def describe_cluster(client: Client) -> Cluster:
    """Return the cluster. Its brokers are sorted by node id."""
    response = client.call(DescribeClusterRequest(), DescribeClusterResponse)
    check(response.error_code, "describing the cluster", response.error_message)
    nodes = [Node(each.broker_id, each.host, each.port, each.rack) for each in response.brokers]
    nodes.sort(key=lambda node: node.node_id)
    return Cluster(response.cluster_id, response.controller_id, nodes)
