"""Replicas that administrators assign in a cluster, and the moves of leaders that follow.

The catalog has the assignment. The node that leads a partition hands it over by itself, once it has
read that another node is assigned to lead it (`runtime.leader_changes`). So an assignment holds as
soon as it is stored, whichever process dies. The request waits a while for the move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from uuid import UUID

from magnetar.runtime.nodes import Nodes
from magnetar.storage.catalog import Catalog
from magnetar.storage.leaders import leader_id
from magnetar.storage.leadership import Led
from magnetar.storage.replicas import Replicas
from magnetar.storage.topic import Topic
from magnetar.storage.topics import Topics
from magnetar.storage.whole_changes import CATALOG

#: How long a request waits for moves at most. Leaders look twice a second.
WAIT_S = 5.0


def preferred(topic: Topic, partition: int, nodes: Nodes) -> int | None:
    """Return the node that is assigned to lead a partition, of those that live; None: any."""
    replicas = topic.assigned.get(partition, ())
    return next((node_id for node_id in replicas if node_id in nodes.known.live), None)


def is_in_place(topics: Topics, nodes: Nodes, led: Led) -> bool:
    """Return whether a partition is led by the node that is assigned to lead it, or is gone."""
    topic = topics.by_id(led.topic_id)
    if topic is None or led.partition >= len(topic.partitions):
        return True
    wanted = preferred(topic, led.partition, nodes)
    return wanted is None or wanted == leader_id(topic.partitions[led.partition], nodes.own_id)


async def assign(
    catalog: Catalog, topics: Topics, nodes: Nodes, assigned: Mapping[UUID, Mapping[int, Replicas]]
) -> None:
    """Store the replicas of partitions, and let all nodes know."""
    for topic_id, replicas in assigned.items():
        await CATALOG.run(partial(catalog.assign_replicas, topic_id, replicas))
    await topics.refresh(assigned)
    await nodes.tell_changes()


async def until_in_place(topics: Topics, nodes: Nodes, led: Iterable[Led], timeout_ms: int) -> bool:
    """Return True when these partitions are led by the nodes that are assigned to lead them, False
    after the timeout or `WAIT_S`."""
    wanted = [*led]
    return await topics.led.until(
        lambda: all(is_in_place(topics, nodes, one) for one in wanted),
        min(max(timeout_ms, 0) / 1000, WAIT_S),
    )
