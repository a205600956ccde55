"""What a cluster is doing: two looks at ends and committed offsets, compared."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.group_lags import committed_by_group
from magnetar.client.groups import ListedGroup, list_groups
from magnetar.client.partitions import LATEST, list_offsets
from magnetar.client.topics import asked_leaders, list_topics
from magnetar.client.transactions import OPEN_STATES, Transaction, list_transactions


@dataclass(frozen=True)
class Look:
    """A cluster at one moment: `taken_s` is steady time, in seconds."""

    taken_s: float
    nodes: int
    ends: Mapping[TopicPartition, int]
    groups: Mapping[str, ListedGroup]
    committed: Mapping[str, Mapping[TopicPartition, int]]
    open: Sequence[Transaction]


@dataclass(frozen=True)
class TopicRate:
    """How fast a topic's partitions grow, in offsets a second: markers count too."""

    topic: str
    partitions: int
    end: int
    rate: float


@dataclass(frozen=True)
class GroupRate:
    """How far a group is behind, and how fast it commits; `rate` in offsets a second."""

    group: str
    state: str
    lag: int
    rate: float


@dataclass(frozen=True)
class Activity:
    """Topics by rate, groups by lag, open transactions by age."""

    nodes: int
    topics: Sequence[TopicRate]
    groups: Sequence[GroupRate]
    open: Sequence[Transaction]

    @property
    def rate(self) -> float:
        """Offsets a second, of all topics."""
        return sum(each.rate for each in self.topics)

    @property
    def lag(self) -> int:
        """The lag of all groups together."""
        return sum(each.lag for each in self.groups)

    def to_json(self, now_ms: int) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            "rate": round(self.rate, 1),
            "lag": self.lag,
            "topics": [
                {
                    "topic": each.topic,
                    "partitions": each.partitions,
                    "end": each.end,
                    "rate": round(each.rate, 1),
                }
                for each in self.topics
            ],
            "groups": [
                {
                    "group": each.group,
                    "state": each.state,
                    "lag": each.lag,
                    "rate": round(each.rate, 1),
                }
                for each in self.groups
            ],
            "open_transactions": [each.to_json(now_ms) for each in self.open],
        }


def look(client: Client) -> Look:
    """Return the cluster as it is now, without internal topics."""
    leaders = asked_leaders(client, (each for each in list_topics(client) if not each.is_internal))
    groups = {each.group_id: each for each in list_groups(client)}
    # Committed offsets before ends: a group must not seem to be ahead of its topics.
    committed = committed_by_group(client, groups)
    ends = list_offsets(client, leaders, leaders, LATEST)
    found = list_transactions(client, states=sorted(OPEN_STATES))
    return Look(time.monotonic(), len(client.node_ids), ends, groups, committed, found)


def compare(earlier: Look, later: Look) -> Activity:
    """Return what happened between two looks. Pure.

    A topic or a group that the earlier look has not seen stands still: its rate is not known yet.
    """
    seconds = max(later.taken_s - earlier.taken_s, 1e-3)
    topics: dict[str, list[tuple[int, int]]] = {}
    for place, end in later.ends.items():
        # A topic that was deleted and made again begins at 0: its rate is not negative.
        grown = max(end - earlier.ends.get(place, end), 0)
        topics.setdefault(place[0], []).append((end, grown))
    rates = [
        TopicRate(topic, len(ends), sum(e for e, _ in ends), sum(g for _, g in ends) / seconds)
        for topic, ends in topics.items()
    ]
    groups = [_group_rate(each, earlier, later, seconds) for each in later.groups.values()]
    return Activity(
        later.nodes,
        sorted(rates, key=lambda each: (-each.rate, each.topic)),
        sorted(groups, key=lambda each: (-each.lag, each.group)),
        sorted(later.open, key=lambda each: each.started_ms),
    )


def _group_rate(group: ListedGroup, earlier: Look, later: Look, seconds: float) -> GroupRate:
    before = earlier.committed.get(group.group_id, {})
    now = later.committed.get(group.group_id, {})
    lag = sum(max(later.ends.get(place, 0) - offset, 0) for place, offset in now.items())
    moved = sum(offset - before.get(place, offset) for place, offset in now.items())
    return GroupRate(group.group_id, group.state, lag, moved / seconds)
