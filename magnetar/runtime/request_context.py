"""What comes with a request besides its body: who sent it, when, through which connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from magnetar.config.listeners import Listener
from magnetar.logging import shown
from magnetar.runtime.response_memory import HeldResponse
from magnetar.security.principal import Principal
from magnetar.security.session import Session


class Connection(Protocol):
    """What handlers and the runtime may know of the connection that a request came through."""

    @property
    def listener(self) -> Listener:
        """The listener that accepted the connection: clients are told its advertised address."""
        ...

    @property
    def session(self) -> Session:
        """The login of the connection, and the principal of its requests."""
        ...

    @property
    def is_closing(self) -> bool:
        """Whether the client will not read another response."""
        ...

    @property
    def is_partial(self) -> bool:
        """Whether a request of the connection has not arrived whole, or is behind another."""
        ...

    def mute(self, pause_ms: int) -> None:
        """Read nothing from the connection for `pause_ms`."""
        ...

    def close(self) -> None:
        """Close the connection, once the responses given before are written."""
        ...


@dataclass(eq=False, slots=True)
class RequestContext:
    """One request's header and arrival."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    client_address: str
    now_ms: int
    """The wall clock's time of the arrival."""
    connection: Connection
    size_bytes: int = 0
    """The size of the request, its header included."""
    held_response: HeldResponse | None = field(default=None, init=False)
    """The memory that a large response holds until it is sent; None for a small one."""
    is_deferred: bool = field(default=False, init=False)
    """Whether the handler begins later, since partitions of the request move between nodes."""
    is_waited_for: bool = field(default=False, init=False)
    """Whether the client has sent another request behind this one, to which a fetch gives way."""
    give_way: Callable[[], None] | None = field(default=None, init=False)
    """Ends the wait of a fetch for records. None: the request does not wait for records."""
    throttle_time_ms: int = field(default=0, init=False)
    """How long a quota makes the connection pause after the response."""

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
        """The client's address as Java prints it. Kafka's tools expect this form of members."""
        return f"/{self.host}"

    def described(self) -> dict[str, Any]:
        """Return the fields by which a line of the log names the client and its request."""
        return {
            "client_id": shown(self.client_id or ""),
            "client_address": self.client_address,
            "principal": shown(str(self.principal)),
            "correlation_id": self.correlation_id,
        }
