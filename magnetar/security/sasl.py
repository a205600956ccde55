"""The server's side of SASL: what every mechanism has in common (RFC 4422, KIP-43)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from magnetar.security.principal import Principal


class AuthenticationFailed(Exception):
    """The client did not prove who it is. The text goes to the client: it names no secret."""


class Identity(NamedTuple):
    """Who a client proved to be, and until when by the wall clock; None: without an end.

    `is_token`: by a delegation token, which another may hold than the user.
    """

    principal: Principal
    expires_at_ms: int | None = None
    is_token: bool = False


class SaslExchange(Protocol):
    """One login by one mechanism."""

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Return the answer to the client's next token. Raises AuthenticationFailed."""
        ...

    @property
    def failure(self) -> str:
        """Why the login has failed although the client is still answered; else empty. For the log:
        the client is told less."""
        ...

    @property
    def identity(self) -> Identity | None:
        """Who the client is; None until the exchange has succeeded."""
        ...


class Logins:
    """How many logins by one mechanism of a listener succeeded, and failed."""

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism of a listener: how a login begins, and how long it may last."""

    name: str
    begin: Callable[[], SaslExchange]
    #: `connections.max.reauth.ms`; 0: a session has no end of its own (KIP-368).
    session_ms_max: int = 0
    logins: Logins = field(default_factory=Logins, compare=False)


#: The mechanisms of a listener by name, in the order in which clients are told them.
Mechanisms = Mapping[str, Mechanism]
