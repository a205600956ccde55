"""One member of a classic group: what it said of itself, and which requests of it are parked."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.groups.classic.exchange import Token

#: (protocol name, metadata) in the member's order of preference.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, kw_only=True)
class Member:
    """Mutable, and changed by its group alone.

    `joining` and `syncing` are the tokens of the requests that wait for this member's group.
    `is_new` until its first generation is formed: only then does it know its id and can heartbeat.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    joining: Token | None = None
    syncing: Token | None = None
    is_new: bool = False
    session_deadline_ms: int = 0

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def session_counts(self) -> bool:
        """Whether missing heartbeats expire it: not while the group makes it wait.

        A new member's wait is bounded all the same: its client cannot be told from a dead one.
        """
        return self.is_new or (self.joining is None and self.syncing is None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return what the member said for this protocol; empty where it does not speak it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""
