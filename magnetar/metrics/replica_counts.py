"""How many replicas partitions have, and how many of these live: above one in a cluster alone."""

from __future__ import annotations

import asyncio

from magnetar.storage.leaders import Placement, leader_id
from magnetar.storage.topic import Topic
from magnetar.storage.topics import Topics

#: Partitions between two turns of the event loop: 9 ms at most.
_SLICE = 1000


def replica_counts(topic: Topic, partition: int, placement: Placement) -> tuple[int, int]:
    """Return how many replicas a partition has that is led here, and how many of them live."""
    if not placement.moves:
        return 1, 1
    nodes = placement.nodes
    replicas = topic.replicas(partition, placement.own_id, nodes)
    return len(replicas), len({*replicas}.intersection(nodes.live))


async def held_here(topics: Topics) -> int:
    """Return of how many partitions this node has a replica. Gives up its turn now and then."""
    placement = topics.placement
    if not placement.moves:
        return sum(len(topic.local) for topic in topics.all())
    own_id, nodes = placement.own_id, placement.nodes
    seen = held = 0
    for topic in topics.all():
        for index, one in enumerate(topic.partitions):
            held += own_id in topic.replicas(index, leader_id(one, own_id), nodes)
            seen += 1
            if not seen % _SLICE:
                await asyncio.sleep(0)
    return held


def under_replicated(topics: Topics) -> int:
    """Return how many of the partitions that are led here have a replica that does not live."""
    if not topics.placement.moves:
        return 0
    counts = (
        replica_counts(topic, log.partition, topics.placement)
        for topic in topics.all()
        for log in topic.local
    )
    return sum(in_sync < replicas for replicas, in_sync in counts)
