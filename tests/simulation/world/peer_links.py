"""The way of one simulated node to its peers: the same network that its clients use.

So what peers say to each other is delayed, cut, half open, and overtaken by what they say on the
next connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.simulation.world.network import Link, Network
from tests.simulation.world.process import Process


def address_of(node_id: int) -> str:
    """Return where a node listens to its peers."""
    return f"peers of {node_id}"


class PeerLinks:
    """A `PeerNetwork` of one process."""

    def __init__(self, network: Network, process: Process, node_id: int) -> None:
        self._network = network
        self._process = process
        self._node_id = node_id

    async def listen(self, accept: Callable[[], asyncio.Protocol]) -> None:
        self._network.listen(self._process, accept, address_of(self._node_id))

    async def dial(self, node_id: int, protocol: asyncio.Protocol) -> None:
        dialled = _Dialled(self._process, protocol)
        link = self._network.connect(
            self._process, protocol.data_received, dialled.lose, address_of(node_id)
        )
        if link is None:
            raise ConnectionRefusedError(f"node {node_id} does not listen")
        dialled.link = link
        protocol.connection_made(dialled)

    def close(self) -> None:
        self._network.refuse(address_of(self._node_id))


class _Dialled(asyncio.Transport):
    """The dialling end of a connection between nodes."""

    link: Link

    def __init__(self, process: Process, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._process = process
        self._protocol = protocol
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self.link.send(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0  # The network takes everything.

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            # What was sent is on its way, and may arrive late.
            self.link.close(may_arrive=True)
            self._process.call_soon(self._protocol.connection_lost, None)

    close = abort

    def lose(self) -> None:
        """The connection is gone, as the dialling node hears."""
        if not self._is_closing:
            self._is_closing = True
            self._protocol.connection_lost(None)
