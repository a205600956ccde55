"""What goes into a consumer group and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.decision import Answered
from coordinator.groups.consumer.partitions import Assigned, Owned
from coordinator.groups.consumer.records import ConsumerGroupRecord, ResolvedRegex


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A ConsumerGroupHeartbeat. None, or -1 of the timeout: as it was said before.

    `new_member_id` is the id to give, should the member have none (v0). `resolved` is what
    `topic_regex` matches, where the group does not know it yet.
    """

    group_id: str
    member_id: str
    member_epoch: int
    new_member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Owned | None = None
    client_id: str = ""
    client_host: str = ""
    resolved: ResolvedRegex | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """The answer. `assignment` is None where the member knows it already."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assigned | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """What the configuration says of one group."""

    size_max: int = 2**31 - 1
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 0
    #: in order of preference; the first is for groups whose members name none
    assignors: tuple[str, ...] = ("uniform", "range")


HeartbeatDecision = Answered[ConsumerGroupRecord, HeartbeatAnswer]
