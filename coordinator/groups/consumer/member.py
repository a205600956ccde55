"""One member of a consumer group: what it said of itself, and how far its assignment has come.

Immutable: a change is a new member, and a record. Source: KIP-848, KIP-1251.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from coordinator.groups.consumer.partitions import Assigned

#: Member epochs with a meaning of their own.
JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2  # static members only


class MemberState(IntEnum):
    """How a member stands to its target assignment; the codes are those of its record."""

    STABLE = 0  # has all it is to have at its epoch
    UNREVOKED_PARTITIONS = 1  # has been asked to give partitions back, and has not said it did
    UNRELEASED_PARTITIONS = 2  # at the target's epoch, but others still hold some of its partitions
    UNKNOWN = 127  # written by a later version


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """What a member that speaks the classic protocol said when it joined."""

    session_timeout_ms: int
    #: (assignor, ConsumerProtocolSubscription) in the member's order of preference
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member as its records have it. `classic` is None for who speaks the consumer protocol."""

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

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has all that the target assignment of `epoch` gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def at_epoch(self, epoch: int) -> Member:
        """Return the member moved to `epoch`; it may still speak with the one it had."""
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
