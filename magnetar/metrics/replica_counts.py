"""How many replicas partitions have, and how many of these live: above one in a cluster alone."""

from __future__ import annotations

from magnetar.storage.leaders import Placement, leader_id
from magnetar.storage.topic import Topic
from magnetar.storage.topics import Topics


def replica_counts(topic: Topic, partition: int, placement: Placement) -> tuple[int, int]:
    """Return how many replicas a partition has that is led here, and how many of them live."""
    if not placement.moves:
        return 1, 1
    nodes = placement.nodes
    replicas = topic.replicas(partition, placement.own_id, nodes)
    return len(replicas), len({*replicas}.intersection(nodes.live))


def held_here(topics: Topics) -> int:
    """Return of how many partitions this node has a replica."""
    placement = topics.placement
    if not placement.moves:
        return sum(len(topic.local) for topic in topics.all())
    own_id, nodes = placement.own_id, placement.nodes
    return sum(
        own_id in topic.replicas(index, leader_id(one, own_id), nodes)
        for topic in topics.all()
        for index, one in enumerate(topic.partitions)
    )


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
