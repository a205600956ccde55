"""One member of a consumer group: what the member said, and how far its assignment has come.

A member is immutable: a change is a new member, and a record. `Target` is what a member shall
have. `Assigned` is what the member has, or has yet to give back; each partition carries the epoch
at which the member was given the partition (KIP-1251). Neither holds a topic without partitions,
and neither ever changes in place. Source: KIP-848, KIP-1251.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from uuid import UUID

from coordinator.groups.member_room import MEMBER_BYTES, protocols_bytes, texts_bytes

Target = Mapping[UUID, frozenset[int]]
Assigned = Mapping[UUID, Mapping[int, int]]
#: What a heartbeat says that its member owns.
Owned = Mapping[UUID, frozenset[int]]


def is_subset(owned: Owned, assigned: Assigned) -> bool:
    """Return whether every topic and partition owned is an assigned one."""
    return all(
        topic_id in assigned and partitions <= assigned[topic_id].keys()
        for topic_id, partitions in owned.items()
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


#: Member epochs with a meaning of their own.
JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2  # static members only


class MemberState(IntEnum):
    """How a member stands to its target assignment; the codes are those of its record."""

    STABLE = 0  # has its target, at its epoch
    UNREVOKED_PARTITIONS = 1  # was asked to give partitions back, and has not said that it did
    UNRELEASED_PARTITIONS = 2  # at the target's epoch, but others still hold some of its partitions
    UNKNOWN = 127  # written by a later version


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """What a member of the classic protocol said when it joined."""

    session_timeout_ms: int
    #: (assignor, ConsumerProtocolSubscription) in the member's order of preference
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member as its records have it. `classic` is None in the consumer protocol."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    #: empty: none
    topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicProtocols | None = None
    # How far its assignment has come.
    epoch: int = JOINING
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assigned = field(default_factory=dict)
    revoking: Assigned = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """What the member takes in memory with what it has said. O(what it has said)."""
        size_bytes = MEMBER_BYTES + texts_bytes(self.topic_names)
        size_bytes += texts_bytes((self.member_id, self.instance_id, self.rack_id))
        size_bytes += texts_bytes(
            (self.client_id, self.client_host, self.topic_regex, self.server_assignor)
        )
        if self.classic is not None:
            size_bytes += protocols_bytes(self.classic.protocols)
        return size_bytes

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has all that the target of `epoch` gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def at_epoch(self, epoch: int) -> Member:
        """Return the member moved to `epoch`; it may still speak with the epoch it had."""
        return replace(self, epoch=epoch, previous_epoch=self.epoch)

    def said_the_same(self, other: Member) -> bool:
        """Return whether both would have the same ConsumerGroupMemberMetadata record."""
        return (
            self.topic_names == other.topic_names
            and self.topic_regex == other.topic_regex
            and self.instance_id == other.instance_id
            and self.rack_id == other.rack_id
            and self.client_id == other.client_id
            and self.client_host == other.client_host
            and self.rebalance_timeout_ms == other.rebalance_timeout_ms
            and self.server_assignor == other.server_assignor
            and self.classic == other.classic
        )
