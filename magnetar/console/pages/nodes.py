"""Nodes and their load: what each leads, coordinates and stores, and what is written to it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magnetar.client import Client, ClientError, TopicPartition, Unreachable
from magnetar.client import transactions as queries
from magnetar.client.groups import list_groups
from magnetar.client.log_dirs import LogDir, describe_log_dirs
from magnetar.client.nodes import Cluster, Node, describe_cluster
from magnetar.client.partitions import LATEST, list_offsets
from magnetar.client.topics import Topic, list_topics
from magnetar.client.transactions import OPEN_STATES
from magnetar.console.screens import Screen, Visit
from magnetar.console.sessions import Ends

#: Two looks nearer than this tell no rate.
_RATE_S_MIN = 0.5


@dataclass(frozen=True)
class Row:
    """A node and its load."""

    node: Node
    is_controller: bool
    leads: int
    replicas: int
    out_of_sync: int
    groups: int
    open_transactions: int
    directories: Sequence[LogDir]
    rate: float | None
    """Offsets written a second in the partitions it leads; None before a second look."""
    is_silent: bool
    """Whether it does not answer: what it coordinates and stores is not known."""

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.directories)


def overview(visit: Visit) -> Screen:
    """The nodes, and what is wrong in the cluster."""

    def ask(client: Client) -> tuple[Cluster, list[Row], list[str]]:
        cluster = describe_cluster(client)
        topics = list_topics(client)
        leaders = {
            (topic.name, each.partition): each.leader
            for topic in topics
            for each in topic.partitions
            if each.leader >= 0
        }
        before = visit.access.ends
        asked = {place: leader for place, leader in leaders.items() if client.asks(leader)}
        # For a node that does not answer, the ends stay as they were: its rate goes on from there.
        kept = {} if before is None else before.offsets
        ends = {place: kept[place] for place in leaders.keys() - asked if place in kept}
        ends |= list_offsets(client, asked, asked, LATEST)
        now = visit.access.ends = Ends(time.monotonic(), ends)
        rates = rates_by_node(before, now, leaders)
        groups = Counter(each.coordinator for each in list_groups(client))
        found = queries.list_transactions(client, states=sorted(OPEN_STATES))
        open_ones = Counter(each.coordinator for each in found)
        directories, refusal = _directories(client)
        rows = [
            _row(
                node,
                cluster,
                topics,
                groups,
                open_ones,
                directories,
                None if rates is None else rates.get(node.node_id, 0.0),
                is_silent=not client.asks(node.node_id),
            )
            for node in cluster.nodes
        ]
        return cluster, rows, [*problems(topics), *([refusal] if refusal else [])]

    cluster, rows, wrong = visit.look(ask)
    values = {
        "cluster_": cluster,
        "rows": rows,
        "problems": wrong[:20],
        "problem_count": len(wrong),
        "size_bytes": sum(row.size_bytes for row in rows),
        "leads": sum(row.leads for row in rows),
        "rate": None
        if any(row.rate is None for row in rows)
        else sum(row.rate or 0.0 for row in rows),
    }
    return Screen("nodes.html", values, "Nodes", is_live=True)


def rates_by_node(
    before: Ends | None, now: Ends, leaders: Mapping[TopicPartition, int]
) -> dict[int, float] | None:
    """Return offsets a second by leader; None without an earlier look. Pure."""
    if before is None or now.time_s - before.time_s < _RATE_S_MIN:
        return None
    found: dict[int, float] = {}
    for place, end in now.offsets.items():
        # A topic that is new, or was deleted and made anew, began at 0.
        written = end - before.offsets.get(place, 0)
        node_id = leaders[place]
        rate = max(written, 0) / (now.time_s - before.time_s)
        found[node_id] = found.get(node_id, 0.0) + rate
    return found


def problems(topics: Sequence[Topic]) -> list[str]:
    """Return what is wrong with partitions, in words. Pure."""
    found = []
    for topic in topics:
        for each in topic.partitions:
            if each.leader < 0:
                found.append(f"{topic.name}-{each.partition} has no leader.")
            elif len(each.in_sync_replicas) < len(each.replicas):
                missing = sorted(set(each.replicas) - set(each.in_sync_replicas))
                names = ", ".join(map(str, missing))
                found.append(f"{topic.name}-{each.partition} is not in sync on {names}.")
    return found


def _row(
    node: Node,
    cluster: Cluster,
    topics: Sequence[Topic],
    groups: Mapping[int, int],
    open_transactions: Mapping[int, int],
    directories: Sequence[LogDir],
    rate: float | None,
    *,
    is_silent: bool,
) -> Row:
    every = [each for topic in topics for each in topic.partitions]
    here = [each for each in every if node.node_id in each.replicas]
    return Row(
        node,
        node.node_id == cluster.controller_id,
        sum(each.leader == node.node_id for each in every),
        len(here),
        sum(node.node_id not in each.in_sync_replicas for each in here),
        groups.get(node.node_id, 0),
        open_transactions.get(node.node_id, 0),
        [each for each in directories if each.node_id == node.node_id],
        rate,
        is_silent,
    )


def _directories(client: Client) -> tuple[list[LogDir], str]:
    """Return the nodes' directories, or why they are not told."""
    try:
        return describe_log_dirs(client), ""
    except Unreachable:
        raise
    except ClientError as refusal:
        return [], str(refusal)
