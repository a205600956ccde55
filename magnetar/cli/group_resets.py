"""Where `magnetar groups reset` puts a group's offsets: planned first, committed when told to."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from magnetar.client.cluster import Client, ClientError, TopicPartition, check
from magnetar.client.groups import committed_offsets
from magnetar.client.partitions import EARLIEST, LATEST, list_offsets
from wire.error_code import ErrorCode
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

_NAMES_UNTIL = 9
_SELECTED = re.compile(r"(?P<topic>[^:]+)(?::(?P<partitions>\d+(?:,\d+)*))?")


@dataclass(frozen=True)
class Bounds:
    """Where a partition begins and ends (exclusive), and what is committed; -1: nothing."""

    start: int
    end: int
    committed: int

    def within(self, offset: int) -> int:
        """Return the nearest offset that a reader can begin at."""
        return min(max(offset, self.start), self.end)


@dataclass(frozen=True)
class Move:
    """A partition's committed offset, -1 if there is none, and the one it is to have."""

    topic: str
    partition: int
    committed: int
    planned: int

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "committed": None if self.committed < 0 else self.committed,
            "new": self.planned,
        }


#: Where to, given the bounds; a time in ms instead: the first record that is not older.
Target = Callable[[Bounds], int] | int


def to_offset(offset: int) -> Target:
    return lambda bounds: bounds.within(offset)


def shifted(by: int) -> Target:
    """Move by so many records; what has no offset yet is moved from the beginning."""
    return lambda bounds: bounds.within(max(bounds.committed, bounds.start) + by)


def to_earliest(bounds: Bounds) -> int:
    return bounds.start


def to_latest(bounds: Bounds) -> int:
    return bounds.end


def to_current(bounds: Bounds) -> int:
    """Commit again what is committed, or the end where nothing is: as Kafka's tool."""
    return bounds.end if bounds.committed < 0 else bounds.committed


def selected(client: Client, topics: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions that `orders` or `orders:0,3` name. ClientError: they do not exist."""
    chosen: set[TopicPartition] = set()
    for text in topics:
        found = _SELECTED.fullmatch(text)
        if found is None:
            raise ClientError(f"{text!r} is neither TOPIC nor TOPIC:PARTITION,PARTITION.")
        there = set(client.topics([found["topic"]]))
        if found["partitions"] is None:
            chosen |= there
            continue
        asked = {(found["topic"], int(index)) for index in found["partitions"].split(",")}
        if missing := sorted(asked - there):
            raise ClientError(f"{missing[0][0]} has no partition {missing[0][1]}.")
        chosen |= asked
    return sorted(chosen)


def plan(
    client: Client, group_id: str, partitions: Collection[TopicPartition] | None, target: Target
) -> list[Move]:
    """Return how the group's offsets would move (None: wherever it has any), by partition."""
    committed = committed_offsets(client, group_id)
    wanted = sorted(committed) if partitions is None else sorted(partitions)
    if not wanted:
        return []
    leaders = client.topics({topic for topic, _ in wanted})
    starts = list_offsets(client, leaders, wanted, EARLIEST)
    ends = list_offsets(client, leaders, wanted, LATEST)
    at_time: Mapping[TopicPartition, int] = {}
    if isinstance(target, int):
        at_time = list_offsets(client, leaders, wanted, target)
    moves = []
    for partition in wanted:
        before = committed.get(partition, -1)
        bounds = Bounds(starts[partition], ends[partition], before)
        if isinstance(target, int):
            found = at_time[partition]
            planned = bounds.end if found < 0 else found
        else:
            planned = target(bounds)
        moves.append(Move(*partition, before, planned))
    return moves


def perform(client: Client, group_id: str, moves: Sequence[Move]) -> None:
    """Commit the offsets planned. ClientError while the group has members."""
    if not moves:
        return
    ((node_id, _),) = client.group_coordinators([group_id]).items()
    request = OffsetCommitRequest(
        group_id=group_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=move.partition, committed_offset=move.planned
                    )
                    for move in each
                ],
            )
            for topic, each in groupby(moves, key=lambda move: move.topic)
        ],
    )
    answer = client.call(request, OffsetCommitResponse, node_id=node_id, at_most=_NAMES_UNTIL)
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.REBALANCE_IN_PROGRESS,
            ):
                raise ClientError(
                    f"group {group_id!r} has members, which would commit over it. Stop them first."
                )
            check(partition.error_code, f"{topic.name}-{partition.partition_index}")


def parse_moment(text: str) -> int:
    """Return ms since the epoch of an ISO time; without a zone it is UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)
