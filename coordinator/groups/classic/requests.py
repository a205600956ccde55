"""What goes into a classic group and what comes out of it.

Refusals that leave the group as it was are raised as `KafkaError`; everything else is an `Outcome`.
A token stands for a parked request, and comes back with its answer; here it is opaque.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.internal.group_metadata import GroupMetadataValue

Token = object
#: The protocols that one member may have. Consumers have one for each assignor, workers of Connect
#: three. With a hundred thousand a join would hold the event loop for a tenth of a second.
PROTOCOLS_MAX = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request. `new_member_id` is the id that a member without an id gets.

    Timeouts are not negative. `must_know_its_id`: a dynamic member's first join is answered
    MEMBER_ID_REQUIRED (KIP-394, v4+). `can_skip_assignment`: the client knows the field of that
    name (KIP-814, v9+).
    """

    member_id: str
    new_member_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    # In the member's order of preference; the broker does not look into the bytes.
    protocols: tuple[tuple[str, bytes], ...]
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    must_know_its_id: bool = False
    can_skip_assignment: bool = False


def check_group_id(group_id: str) -> None:
    """Raise INVALID_GROUP_ID for an empty id: members need a name, simple consumers do not."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


def check_session_timeout(session_ms: int, least_ms: int, most_ms: int) -> None:
    """Raise INVALID_SESSION_TIMEOUT outside [least_ms, most_ms], the configured bounds."""
    if not least_ms <= session_ms <= most_ms:
        raise KafkaError(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"the session timeout is {session_ms} ms, allowed are {least_ms} to {most_ms}"
            " (group.min.session.timeout.ms, group.max.session.timeout.ms)",
        )


def check_protocols(protocols: Sequence[tuple[str, bytes]]) -> None:
    """Raise INCONSISTENT_GROUP_PROTOCOL for more protocols than any client has.

    Each join goes through all of its member's, and each rebalance through those of all members.
    """
    if len(protocols) > PROTOCOLS_MAX:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"{len(protocols)} protocols of one member, at most {PROTOCOLS_MAX}",
        )


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as its leader sees it: `metadata` is for the selected protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The answer to a JoinGroup request. `members` is filled for the leader alone."""

    member_id: str
    error_code: ErrorCode = ErrorCode.NONE
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup request. Only the leader fills `assignments`, by member id."""

    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """The answer to a SyncGroup request."""

    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """A member that a LeaveGroup names. An empty `member_id`: by its instance id alone."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(slots=True)
class Outcome:
    """What one input brings about.

    `value` is the group's new record: the caller appends it and applies it (`records.apply`) in the
    same step. The answers, in order, may go out once the record is durable.
    """

    answers: list[tuple[Token, JoinAnswer | SyncAnswer]] = field(default_factory=list)
    value: GroupMetadataValue | None = None

    def answer(self, token: Token, answer: JoinAnswer | SyncAnswer) -> None:
        """Answer `token`. The caller has forgotten the token, so that no second answer follows."""
        self.answers.append((token, answer))
