"""How many replicas partitions have, and how many of them live. Outside a cluster: 1 and 1."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from magnetar.storage.leaders import Elsewhere, Placement, leader_id
from magnetar.storage.topic import Topic
from magnetar.storage.topics import Topics

#: Partitions between two turns of the event loop: 9 ms at most.
_SLICE = 1000


class Replication(NamedTuple):
    """What one node counts of its replicas."""

    held: int
    """Partitions of which the node has a replica."""
    under_replicated: int
    """Partitions that the node leads, and of which a replica does not live."""


def replica_counts(topic: Topic, partition: int, placement: Placement) -> tuple[int, int]:
    """Return how many replicas a partition has that is led here, and how many of them live."""
    if not placement.moves:
        return 1, 1
    nodes = placement.nodes
    replicas = topic.replicas(partition, placement.own_id, nodes)
    return len(replicas), len({*replicas}.intersection(nodes.live))


async def replication(topics: Topics) -> Replication:
    """Return how this node's partitions are replicated. Gives up its turn now and then."""
    placement = topics.placement
    if not placement.moves:
        return Replication(sum(len(topic.local) for topic in topics.all()), 0)
    own_id, nodes = placement.own_id, placement.nodes
    live = {*nodes.live}
    seen = held = under_replicated = 0
    for topic in topics.all():
        for index, one in enumerate(topic.partitions):
            replicas = topic.replicas(index, leader_id(one, own_id), nodes)
            held += own_id in replicas
            if not isinstance(one, Elsewhere):
                under_replicated += not live.issuperset(replicas)
            seen += 1
            if not seen % _SLICE:
                await asyncio.sleep(0)
    return Replication(held, under_replicated)
