"""Replicas of a cluster's partitions: the nodes that are promised to lead, not copies of the data.

The data is in the database, and any node may lead any partition. A replication factor says how many
nodes clients are told of. Where an administrator has named the nodes, these are *assigned*: stored,
the preferred leader first. Elsewhere they follow from the leader by rendezvous hashing: the leader,
and those that would take the partition over after it, one after the other. A replica is in sync as
long as it lives, since it has nothing to copy.

docs/decisions/0066-replicas-are-leaders.md
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias
from uuid import UUID

from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Nodes, the preferred leader first.
Replicas: TypeAlias = tuple[int, ...]


class Known(NamedTuple):
    """The nodes of a cluster."""

    #: The ids of the nodes that have a lease, ascending.
    live: Sequence[int]
    #: The ids of all nodes that ever started, ascending.
    all: Sequence[int]


# --- who leads


def by_weight(topic_id: UUID, partition: int, node_ids: Iterable[int]) -> list[int]:
    """Return nodes in the order in which they take a partition: by rendezvous weight."""
    key = topic_id.bytes + partition.to_bytes(4, "big")
    # Both in the comparison: a node id decides between equal weights.
    return sorted(node_ids, key=lambda node_id: (_weight(key, node_id), node_id), reverse=True)


def _weight(key: bytes, node_id: int) -> bytes:
    return blake2b(key + node_id.to_bytes(4, "big"), digest_size=8).digest()


def heir(topic_id: UUID, partition: int, node_ids: Collection[int], assigned: Replicas = ()) -> int:
    """Return which of these nodes takes a partition: the first assigned one, else by weight."""
    for node_id in assigned:
        if node_id in node_ids:
            return node_id
    return by_weight(topic_id, partition, node_ids)[0]


# --- what clients are told


def told(
    topic_id: UUID,
    partition: int,
    leader: int,
    factor: int,
    nodes: Known,
    assigned: Replicas = (),
) -> Replicas:
    """Return the replicas of a partition that `leader` leads.

    A node that leads is always among them. Without an assignment live nodes come before others, and
    there are fewer than `factor` only where there are fewer nodes.
    """
    if assigned:
        # All that were assigned are gone: another node leads in place of the last one.
        return assigned if leader in assigned else (*assigned[:-1], leader)
    if factor == 1:
        return (leader,)
    followers = [node_id for node_id in nodes.all if node_id != leader]
    if factor <= len(followers):
        live = {*nodes.live}
        followers = by_weight(topic_id, partition, followers)
        followers.sort(key=lambda node_id: node_id not in live)
    return (leader, *followers[: factor - 1])


# --- what clients ask for


def check_assignment(
    replicas: Sequence[int], nodes: Known, *, factor: int | None = None, one_disk: str = ""
) -> Replicas:
    """Return an assignment of one partition that can be had.

    `factor`: as many replicas as the topic's other partitions have; None: any number.
    Raises INVALID_REPLICA_ASSIGNMENT, and INVALID_REPLICATION_FACTOR for several replicas where
    `one_disk` says why there cannot be more than one.
    """
    others = [replica for replica in replicas if replica not in nodes.all]
    if others:
        raise _unusable(f"includes broker {others[0]}, but no such broker is registered.")
    if not replicas:
        raise _unusable("includes an empty replica list.")
    if len(set(replicas)) < len(replicas):
        twice = next(each for each in replicas if replicas.count(each) > 1)
        raise _unusable(f"includes the broker {twice} more than once.")
    if factor is not None and len(replicas) != factor:
        raise _unusable(
            f"includes a partition with {len(replicas)} replica(s), but this is not consistent"
            f" with previous partitions, which have {factor} replica(s)."
        )
    if one_disk and len(replicas) > 1:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, one_disk)
    if not any(replica in nodes.live for replica in replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "All brokers specified in the manual partition assignment are fenced or in controlled"
            " shutdown.",
        )
    return tuple(replicas)


def _unusable(reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {reason}"
    )
