"""A node serves clients while it has a lease: without one, they are sent to look for other nodes.

A node that is cut off from the database learns nothing any more. What clients send waits for a
commit that may never come, and what the node knows of leaders is old. Once its own copy of the
lease has run out, other nodes may lead. So it closes the connections of its clients, and closes new
ones. Clients take that for the end of a broker: they ask another one for the leaders, and send
again what was not answered. That is safe for what was appended here. Either it is committed after
all, and the next leader recognises it (an idempotent producer's batch by its sequence, the end of a
transaction by its outcome), or it is fenced, and has no effect.

The node goes on asking for its commits. If no other node has taken over when the database answers
again, it has its lease back, and serves. Otherwise its next commit is fenced, and the node ends.
Source: docs/decisions/0069-a-node-without-a-lease-serves-nobody.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from magnetar.logging import get_logger
from magnetar.runtime.background import Background

_log = get_logger("nodes")


class Lease(Protocol):
    """The lease of a node, which its commits renew (`logstore.remote.store_commits`)."""

    @property
    def is_leased(self) -> bool: ...

    async def lease_ended(self) -> None:
        """Return when the lease has ended: another node may take over from now on."""
        ...

    async def proven(self) -> None:
        """Return when a commit has returned that began after the call."""
        ...


class Clients(Protocol):
    """The server of clients."""

    def turn_away(self) -> None:
        """Close all connections, and close new ones, until `serve_again`."""
        ...

    def serve_again(self) -> None: ...


class LeaseWatch:
    """Turns clients away while there is no lease."""

    def __init__(
        self, lease: Lease, clients: Clients, fail: Callable[[BaseException], None]
    ) -> None:
        self._lease = lease
        self._clients = clients
        self._background = Background(fail)

    def start(self) -> None:
        """Watch from now on."""
        self._background.start(self._watch())

    def stop(self) -> None:
        """Watch no more."""
        self._background.cancel()

    async def _watch(self) -> None:
        while True:
            await self._lease.lease_ended()
            self._clients.turn_away()
            _log.warning(
                "the database does not renew this node's lease: clients are turned away, and"
                " find the other nodes"
            )
            while not self._lease.is_leased:
                await self._lease.proven()
            self._clients.serve_again()
            _log.info("the lease is renewed: clients are served again")
