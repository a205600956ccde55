"""Nodes of a cluster among each other: each has a TCP address, which its row in the catalog names.

Both sides of a connection prove that they know the cluster's secret (`proofs`); what follows is
neither encrypted nor signed, so the network between nodes must be one that no stranger writes to.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable


class TcpNetwork:
    """The address of this node, and those of its peers."""

    def __init__(
        self, bound: socket.socket, address_of: Callable[[int], tuple[str, int] | None]
    ) -> None:
        """`bound`: the address of this node, which is listened to from `listen` on. `address_of`:
        where a peer is; None: the catalog names no such node."""
        self._bound = bound
        self._address_of = address_of
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, accept: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(accept, sock=self._bound)

    async def dial(self, node_id: int, protocol: asyncio.Protocol) -> None:
        address = self._address_of(node_id)
        if address is None:
            raise OSError(f"the cluster has no node {node_id}")
        await asyncio.get_running_loop().create_connection(lambda: protocol, *address)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        else:
            self._bound.close()
