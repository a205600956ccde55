"""What the assignors have in common, and their names. They are pure and deterministic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from coordinator.groups.consumer.partitions import Target


@dataclass(frozen=True, slots=True)
class Reader:
    """A member as an assignor sees it: the topics it reads, and the target it had."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    target: Target


#: (members in the order of their coming, partition count by topic id) -> target by member id.
#: Every partition that somebody reads goes to exactly one of its readers.
Assignor = Callable[[list[Reader], Mapping[UUID, int]], dict[str, Target]]


def frozen(assigned: Mapping[str, Mapping[UUID, set[int]]]) -> dict[str, Target]:
    """Return assignments as targets: without topics that have no partitions."""
    return {
        member_id: {
            topic_id: frozenset(partitions) for topic_id, partitions in topics.items() if partitions
        }
        for member_id, topics in assigned.items()
    }
