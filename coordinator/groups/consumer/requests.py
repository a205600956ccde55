"""What goes into a consumer group and what comes out, and which heartbeats are malformed.

The checks here look nothing up: they judge a request by its own words. Source: KIP-848.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.decision import Decision
from coordinator.groups.consumer.member import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    Assigned,
    Owned,
)
from coordinator.groups.consumer.records import ConsumerGroupRecord, ResolvedRegex
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Names of topics in one member's subscription. To compare them with those of the other members
#: takes 2 to 4 us for each name, in one step.
TOPIC_NAMES_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A ConsumerGroupHeartbeat. A field that is None, or a timeout of -1, is as said before.

    `new_member_id` is the id to give to a member without one (v0). `resolved` is what `topic_regex`
    matches, where the group does not know it yet. `rights_version` changes when what clients may
    know of has changed.
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
    rights_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """The answer to a heartbeat. `assignment` is None where the member knows it already."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assigned | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """What the configuration says of one group; `classic_size_max` holds after a downgrade."""

    size_max: int = 2**31 - 1
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 0
    #: in order of preference; the first is for groups whose members name none
    assignors: tuple[str, ...] = ("uniform", "range")
    #: group.consumer.migration.policy: bidirectional, upgrade, downgrade or disabled
    migration_policy: str = "bidirectional"
    classic_size_max: int = 2**31 - 1

    @property
    def may_upgrade(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self.migration_policy in ("bidirectional", "upgrade")

    @property
    def may_downgrade(self) -> bool:
        """Whether a consumer group may become a classic group."""
        return self.migration_policy in ("bidirectional", "downgrade")

    @property
    def may_mix(self) -> bool:
        """Whether a member of the classic protocol may join a consumer group."""
        return self.migration_policy != "disabled"


HeartbeatDecision = Decision[ConsumerGroupRecord, HeartbeatAnswer]


#: From this version on clients make the member ids.
MEMBER_IDS_FROM_CLIENTS_SINCE = 1


def check_heartbeat(request: HeartbeatRequest, version: int, assignors: Sequence[str]) -> None:
    """Raise INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for what no member may say."""
    must_have_id = version >= MEMBER_IDS_FROM_CLIENTS_SINCE
    # Only a first join of v0 may come without an id, and a static member's departure.
    if must_have_id or request.member_epoch > 0 or request.member_epoch == LEAVING:
        _not_empty(request.member_id, "MemberId")
    _not_empty(request.group_id, "GroupId")
    _not_empty(request.instance_id, "InstanceId")
    _not_empty(request.rack_id, "RackId")
    if request.member_epoch == JOINING:
        _check_join(request)
    elif request.member_epoch == LEAVING_FOR_A_WHILE and request.instance_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif request.member_epoch < LEAVING_FOR_A_WHILE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if len(request.topic_names or ()) > TOPIC_NAMES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"SubscribedTopicNames has more than {TOPIC_NAMES_MAX} names: use a pattern.",
        )
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors:"
            f" {', '.join(assignors)}.",
        )


def _check_join(request: HeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        reason = "RebalanceTimeoutMs must be provided in first request."
    elif request.owned is None or request.owned:
        reason = "TopicPartitions must be empty when (re-)joining."
    elif request.topic_names is None and request.topic_regex is None:
        reason = (
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
            " (re-)joining."
        )
    else:
        return
    raise KafkaError(ErrorCode.INVALID_REQUEST, reason)


def _not_empty(text: str | None, name: str) -> None:
    """Raise INVALID_REQUEST for a blank text; None says nothing. As Kafka checks."""
    if text is not None and not text.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
