"""Who speaks for each transactional id: the client that a log line about it has to name.

In memory only, and one entry for each id that the coordinator knows: after a restart a client is
known again from its next request on.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.runtime.request_context import RequestContext


class TransactionClient(NamedTuple):
    """A client as its requests name it, and the address they came from."""

    client_id: str | None = None
    client_address: str | None = None


class TransactionClients:
    """The client that last spoke for each transactional id."""

    def __init__(self) -> None:
        #: The fields of a TransactionClient: it is made when somebody asks for it.
        self._clients: dict[str, tuple[str | None, str | None]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def note(self, transactional_id: str, context: RequestContext) -> None:
        """Remember who sent a request that the coordinator has accepted for this id."""
        self._clients[transactional_id] = context.client_id, context.client_address

    def of(self, transactional_id: str) -> TransactionClient:
        """Return who spoke last for the id; nobody known: None in both fields."""
        return TransactionClient(*self._clients.get(transactional_id, ()))

    def forget(self, transactional_id: str) -> None:
        """The id has expired."""
        self._clients.pop(transactional_id, None)
