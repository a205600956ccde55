"""The offsets that groups have committed: fetch them, commit them, move them.

A move is planned first and committed when told to: `plan`, then `commit_moves`. The requests are
those of the last versions that name topics; later ones name topic ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.client.cluster import Client, TopicPartition, by_topic, transient_of
from magnetar.client.errors import ClientError, check, code_of
from magnetar.client.partitions import EARLIEST, LATEST, list_offsets
from wire.error_code import ErrorCode
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

#: OffsetFetch asks for several groups from 8 on (KIP-709); from 10 on it names topic ids.
_FETCH_GROUPS_SINCE = 8
_NAMES_UNTIL = 9


@dataclass(frozen=True)
class Bounds:
    """A partition's first offset and its end (exclusive), and the committed offset; -1: none."""

    start: int
    end: int
    committed: int

    def nearest(self, offset: int) -> int:
        """Return the nearest offset that a reader can begin at."""
        # As Kafka's tool does: a committed offset outside the log would make clients reset, each by
        # its own rule.
        return min(max(offset, self.start), self.end)


@dataclass(frozen=True)
class Move:
    """A partition's committed offset, -1 if there is none, and its planned one."""

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


#: Where a move leads: an offset computed from the bounds, or a time in ms that stands for the
#: first record that is not older.
Target = Callable[[Bounds], int] | int


def to_offset(offset: int) -> Target:
    return lambda bounds: bounds.nearest(offset)


def shifted(by: int) -> Target:
    """Move by a number of records; a partition without an offset moves from its beginning."""
    return lambda bounds: bounds.nearest(max(bounds.committed, bounds.start) + by)


def to_earliest(bounds: Bounds) -> int:
    return bounds.start


def to_latest(bounds: Bounds) -> int:
    return bounds.end


def to_current(bounds: Bounds) -> int:
    """Commit the committed offset again, or the end if there is none, as Kafka's tool does."""
    return bounds.end if bounds.committed < 0 else bounds.committed


def committed_offsets(client: Client, group_id: str) -> dict[TopicPartition, int]:
    """Return the group's committed offsets, without those of open transactions."""
    (group,) = fetch_offsets(client, client.group_coordinator_of(group_id), [group_id])
    return committed_in(group)


def fetch_offsets(
    client: Client, node_id: int, group_ids: Sequence[str]
) -> list[OffsetFetchResponseGroup]:
    """Return what the coordinator of these groups, at least one, answers of each."""
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=each, topics=None) for each in group_ids]
    )
    response = client.retry_transient(
        lambda: client.call(
            request,
            OffsetFetchResponse,
            node_id=node_id,
            at_least=_FETCH_GROUPS_SINCE,
            at_most=_NAMES_UNTIL,
        ),
        lambda response: transient_of(each.error_code for each in response.groups),
    )
    return response.groups


def committed_in(group: OffsetFetchResponseGroup) -> dict[TopicPartition, int]:
    """Return the committed offsets of one group's answer. Raises Refused."""
    check(group.error_code, f"the offsets of group {group.group_id!r}")
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in group.topics
        for each in topic.partitions
        # -1 stands for a partition without a committed offset.
        if each.committed_offset >= 0
    }


def commit_offsets(
    client: Client,
    node_id: int | None,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    member_id: str = "",
    generation_id: int = -1,
) -> dict[TopicPartition, int]:
    """Commit through the coordinator `node_id`; return each partition's error code."""
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offsets[topic, index]
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(offsets).items()
        ],
    )
    response = client.call(request, OffsetCommitResponse, node_id=node_id, at_most=_NAMES_UNTIL)
    return {
        (topic.name, each.partition_index): each.error_code
        for topic in response.topics
        for each in topic.partitions
    }


def plan(
    client: Client, group_id: str, partitions: Collection[TopicPartition] | None, target: Target
) -> list[Move]:
    """Return how the group's offsets would move, by partition.

    `partitions` None: all in which the group has committed an offset.
    """
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
            # No record is as young: what is read next is what comes next.
            planned = bounds.end if found < 0 else found
        else:
            planned = target(bounds)
        moves.append(Move(*partition, before, planned))
    return moves


def commit_moves(client: Client, group_id: str, moves: Sequence[Move]) -> None:
    """Commit the planned offsets. ClientError while the group has members."""
    if not moves:
        return
    offsets = {(move.topic, move.partition): move.planned for move in moves}
    node_id = client.group_coordinator_of(group_id)
    for (topic, index), code in commit_offsets(client, node_id, group_id, offsets).items():
        # Commits without a member id pass in an empty group only: generation -1 is that of an
        # administrator.
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS):
            raise ClientError(
                f"group {group_id!r} has members, which would commit their own offsets over these."
                " Stop them first."
            )
        check(code, f"{topic}-{index}")


def delete_offsets(
    client: Client, group_id: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Delete the group's committed offsets there; return each partition's error code.

    GROUP_SUBSCRIBED_TO_TOPIC: a member reads the topic. Source: KIP-496.
    """
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[OffsetDeleteRequestPartition(partition_index=each) for each in indexes],
            )
            for topic, indexes in by_topic(partitions).items()
        ],
    )
    node_id = client.group_coordinator_of(group_id)
    response = client.call(request, OffsetDeleteResponse, node_id=node_id)
    check(response.error_code, f"group {group_id!r}")
    return {
        (topic.name, each.partition_index): code_of(each.error_code)
        for topic in response.topics
        for each in topic.partitions
    }
