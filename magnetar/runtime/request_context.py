"""What comes with a request besides its body: who sent it, when, through which connection."""

from __future__ import annotations

from typing import Any, Protocol

from magnetar.config.listeners import Listener
from magnetar.logging import shown
from magnetar.runtime.response_memory import HeldResponse
from magnetar.security.principal import Principal
from magnetar.security.session import Session


class Connection(Protocol):
    """What the broker's inside may know of the connection that a request came through."""

    @property
    def listener(self) -> Listener:
        """The listener that accepted the connection: clients are told its advertised address."""
        ...

    @property
    def session(self) -> Session:
        """The login of the connection, and who its requests come from."""
        ...

    @property
    def is_closing(self) -> bool:
        """Whether the client will not read another response."""
        ...

    def mute(self, pause_ms: int) -> None:
        """Read nothing more of the connection for a time."""
        ...

    def close(self) -> None:
        """Close the connection, once the responses given before are written."""
        ...


class RequestContext:
    """One request's header and arrival; `now_ms` is the wall clock's time of its arrival."""

    __slots__ = (
        "api_key",
        "client_address",
        "client_id",
        "connection",
        "correlation_id",
        "held",
        "now_ms",
        "size_bytes",
        "throttle_time_ms",
        "version",
    )

    def __init__(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        client_address: str,
        now_ms: int,
        connection: Connection,
        size_bytes: int = 0,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_address = client_address
        self.now_ms = now_ms
        #: The memory that a large response holds until it is sent; None for a small one.
        self.held: HeldResponse | None = None
        self.connection = connection
        #: The bytes of the request, its header included.
        self.size_bytes = size_bytes
        #: How long a quota makes the connection pause after the response.
        self.throttle_time_ms = 0

    @property
    def principal(self) -> Principal:
        """Who the request comes from."""
        return self.connection.session.principal

    @property
    def host(self) -> str:
        """The client's address without its port, as ACLs name it."""
        return self.client_address.rpartition(":")[0] or self.client_address

    @property
    def client_host(self) -> str:
        """The client's address as Java prints it: tools of Kafka expect that of group members."""
        return f"/{self.host}"

    def described(self) -> dict[str, Any]:
        """Return the fields by which a line of the log names the client and its request."""
        return {
            "client_id": shown(self.client_id or ""),
            "client_address": self.client_address,
            "principal": shown(str(self.principal)),
            "correlation_id": self.correlation_id,
        }
