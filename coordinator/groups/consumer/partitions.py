"""Sets of partitions by topic id, as members are given them.

`Target` is what a member shall have. `Assigned` is what it has, or has yet to give back, each
partition with the epoch at which the member was given it (KIP-1251). Neither is ever changed in
place, and neither holds a topic without partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

Target = Mapping[UUID, frozenset[int]]
Assigned = Mapping[UUID, Mapping[int, int]]
#: What a heartbeat says that its member owns.
Owned = Mapping[UUID, frozenset[int]]


def is_subset(owned: Owned, assigned: Assigned) -> bool:
    """Return whether every partition owned is an assigned one."""
    return all(
        partitions <= assigned.get(topic_id, {}).keys() for topic_id, partitions in owned.items()
    )


def overlap(owned: Owned, assigned: Assigned) -> bool:
    """Return whether some partition owned is an assigned one."""
    return any(
        not partitions.isdisjoint(assigned.get(topic_id, {}))
        for topic_id, partitions in owned.items()
    )


def as_target(assigned: Assigned) -> Target:
    """Return the partitions without their epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in assigned.items()}


def with_epoch(target: Target, epoch: int) -> Assigned:
    """Return the partitions as assigned at `epoch`."""
    return {
        topic_id: dict.fromkeys(sorted(partitions), epoch)
        for topic_id, partitions in target.items()
    }


def merged(one: Assigned, other: Assigned) -> Assigned:
    """Return the partitions of both, which have none in common."""
    return {
        topic_id: {**one.get(topic_id, {}), **other.get(topic_id, {})}
        for topic_id in {**one, **other}
    }
