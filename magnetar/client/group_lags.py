"""How far many groups have read, in few requests: what a list of groups shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.group_offsets import committed_in, fetch_offsets
from magnetar.client.partitions import bounds
from wire.error_code import ErrorCode


@dataclass(frozen=True)
class Standing:
    """A group in a partition; `stable` and `end` are -1 for a topic that cannot be asked."""

    topic: str
    partition: int
    committed: int
    stable: int
    end: int

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def lag(self) -> int:
        """Offsets from the committed one to the end, as Kafka's tools count."""
        return max(self.end - self.committed, 0)

    @property
    def readable(self) -> int:
        """Offsets that read_committed members may pass now; some may hold markers."""
        return max(min(self.stable, self.end) - self.committed, 0)

    @property
    def held_back(self) -> int:
        """Offsets that wait for an open transaction."""
        return self.lag - self.readable


def standings(client: Client, group_ids: Iterable[str]) -> dict[str, list[Standing]]:
    """Return where each group stands in the partitions that it has committed, by partition.

    A group that may not be described is left out.
    """
    committed = committed_by_group(client, group_ids)
    wanted = {place for offsets in committed.values() for place in offsets}
    leaders = known_leaders(client, {topic for topic, _ in wanted})
    there = wanted & set(leaders)
    stable, ends = bounds(client, leaders, there)
    return {
        group_id: [
            Standing(*place, offset, stable.get(place, -1), ends.get(place, -1))
            for place, offset in sorted(offsets.items())
        ]
        for group_id, offsets in committed.items()
    }


def known_leaders(client: Client, names: Collection[str]) -> dict[TopicPartition, int]:
    """Return the leaders of the topics that exist and may be described; the others are left out,
    and so are leaders that are not asked."""
    if not names:
        return {}
    return {
        (topic.name or "", partition.partition_index): partition.leader_id
        for topic in client.metadata(names).topics
        if topic.error_code == ErrorCode.NONE
        for partition in topic.partitions
        if client.asks(partition.leader_id)
    }


def committed_by_group(
    client: Client, group_ids: Iterable[str]
) -> dict[str, dict[TopicPartition, int]]:
    """Return the committed offsets of each group.

    Left out are groups that may not be described, and share groups, which commit none.
    """
    found = {}
    for node_id, ids in client.group_coordinators(group_ids).items():
        for group in fetch_offsets(client, node_id, ids):
            if group.error_code not in (
                ErrorCode.GROUP_AUTHORIZATION_FAILED,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ):
                found[group.group_id] = committed_in(group)
    return found
