"""A simulated network between clients and brokers, and between the nodes of a cluster.

A connection keeps the order of its bytes and cuts them anywhere; connections do not keep order
among each other. A connection may be cut: each side hears of it at a time of its own, and what was
under way is lost. It may be half open: one direction carries nothing any more, and no side hears of
it. A client may read slowly, so that the broker's answers pile up.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any

from tests.simulation.world.process import Process

_DELAY_S = (0.000_05, 0.000_1, 0.000_3, 0.001, 0.02)
#: Bytes that the operating system keeps for a client that does not read.
_BUFFERED_BYTES = 4_000


#: Where the one broker of a history without nodes listens.
BROKER = "broker"


class ListeningSocket(socket.socket):
    """Stands for the address of the broker; no byte passes through it."""

    def __init__(self, address: str = BROKER) -> None:
        super().__init__(socket.AF_UNIX)
        self.address = address

    def getsockname(self) -> tuple[str, int]:
        return ("broker.simulated", 9092)

    def listen(self, backlog: int = 0, /) -> None:
        """Pass over it: connections come from the simulated network."""


class _Pipe:
    """One direction of a connection: bytes arrive in their order, after some time."""

    def __init__(self, link: Link, receiver: Process, arrive: Callable[[bytes], None]) -> None:
        self._link = link
        self._receiver = receiver
        self._arrive = arrive
        self._last_s = 0.0
        self.is_dead = False

    def send(self, data: bytes) -> None:
        """Let `data` arrive later, in one piece or in several."""
        random = self._link.random
        while data:
            size = len(data) if random.random() < 0.7 else random.randint(1, len(data))
            piece, data = data[:size], data[size:]
            at_s = self._receiver.time() + random.choice(_DELAY_S)
            self._last_s = max(at_s, self._last_s)
            self._receiver.call_at(self._last_s, self._deliver, piece)

    def after_all(self, callback: Callable[[], None]) -> None:
        """Call back in the receiving process when everything sent has arrived."""
        self._receiver.call_at(max(self._receiver.time(), self._last_s), callback)

    def _deliver(self, piece: bytes) -> None:
        if not self.is_dead:
            self._link.trace(self._receiver.time(), piece)
            self._arrive(piece)


class Link:
    """One connection, with both its ends."""

    def __init__(
        self,
        random: Random,
        trace: Callable[[float, bytes], None],
        client: Process,
        server: Process,
        number: int,
        on_data: Callable[[bytes], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.random = random
        self.trace = trace
        self.number = number
        self.client = client
        self.server = server
        self._on_data = on_data
        self._on_lost = on_lost
        self.transport = _Transport(self, server)
        self._to_server = _Pipe(self, server, self.transport.receive)
        self.to_client = _Pipe(self, client, self._receive)
        self._is_lost_to_client = False
        self.reads_slowly = False
        #: Whether it ever did: what was read then came late.
        self.has_read_slowly = False
        self._unread: list[bytes] = []

    # The client's side.

    def send(self, data: bytes) -> None:
        """Send bytes to the broker."""
        self._to_server.send(data)

    def close(self, *, may_arrive: bool) -> None:
        """End the connection from the client's side, with nothing more to be heard.

        `may_arrive`: what was sent may still arrive, however late.
        """
        self._is_lost_to_client = True
        self.to_client.is_dead = True
        self._to_server.is_dead |= not may_arrive
        self._to_server.after_all(self.transport.lose)

    def _receive(self, data: bytes) -> None:
        if self._is_lost_to_client:
            return
        if self.reads_slowly:
            self._unread.append(data)
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        self.server.call_soon(self.transport.sent, len(data))
        self._on_data(data)

    def read_on(self) -> None:
        """Read what has piled up, and everything from now on."""
        self.reads_slowly = False
        unread, self._unread = self._unread, []
        for data in unread:
            if not self._is_lost_to_client:
                self._take(data)

    def lose(self) -> None:
        """Tell the client that its connection is gone."""
        if not self._is_lost_to_client:
            self._is_lost_to_client = True
            self._on_lost()

    # What happens to it.

    def cut(self) -> None:
        """Lose what is under way; both sides hear of it, each at its own time."""
        self._to_server.is_dead = self.to_client.is_dead = True
        self.client.call_later(self.random.choice((0.0, 0.001, 0.2)), self.lose)
        self.server.call_later(self.random.choice((0.0, 0.001, 0.2, 2.0)), self.transport.lose)

    def halve(self) -> None:
        """Let one direction, or both, carry nothing more; no side hears of it."""
        to_server, to_client = self.random.choice(((True, False), (False, True), (True, True)))
        self._to_server.is_dead |= to_server
        self.to_client.is_dead |= to_client

    def end_server(self, *, is_told: bool) -> None:
        """The broker's process has ended: what it sent arrives, then perhaps a reset."""
        self._to_server.is_dead = True
        if is_told:
            self.to_client.after_all(self.lose)


class _Transport(asyncio.Transport):
    """The broker's end of a connection."""

    def __init__(self, link: Link, process: Process) -> None:
        super().__init__()
        self._link = link
        self._process = process
        self._protocol: asyncio.BufferedProtocol | asyncio.Protocol | None = None
        self._is_reading = True
        self._received: list[bytes] = []
        self._unsent_bytes = 0
        self._limit_bytes = _BUFFERED_BYTES
        self._is_full = False
        self._is_closing = False
        self._is_lost = False

    def begin(self, protocol: asyncio.BufferedProtocol | asyncio.Protocol) -> None:
        """Hand the accepted connection to the broker."""
        self._protocol = protocol
        protocol.connection_made(self)

    def receive(self, data: bytes) -> None:
        """Give the protocol what has arrived, or keep it while the protocol does not read."""
        self._received.append(data)
        self._feed()

    def _feed(self) -> None:
        protocol = self._protocol
        while self._received and self._is_reading and not self._is_closing and protocol:
            data = self._received.pop(0)
            if isinstance(protocol, asyncio.Protocol):
                protocol.data_received(data)
                continue
            while data and not self._is_closing:
                buffer = memoryview(protocol.get_buffer(-1))
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                data = data[size:]
                protocol.buffer_updated(size)

    def sent(self, size: int) -> None:
        """The client has read so many bytes."""
        self._unsent_bytes -= size
        if self._is_full and self._unsent_bytes <= self._limit_bytes // 4 and not self._is_lost:
            self._is_full = False
            assert self._protocol is not None
            self._protocol.resume_writing()

    def lose(self) -> None:
        """The connection is gone, as the broker hears."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        if self._protocol is not None:
            self._protocol.connection_lost(None)

    # A transport, as the broker uses it.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_lost or not self._process.is_alive:
            return
        self._unsent_bytes += len(data)
        self._link.to_client.send(bytes(data))
        if self._unsent_bytes > self._limit_bytes and not self._is_full:
            self._is_full = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The simulated client has a small buffer, so that it fills."""

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._process.call_soon(self._feed)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (f"10.0.0.{self._link.number % 200}", 40_000) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._link.to_client.after_all(self._link.lose)
            self._process.call_soon(self.lose)

    def abort(self) -> None:
        self.close()


class Network:
    """Who listens, and every connection that is open."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._traced = blake2b(digest_size=8)
        self._links: dict[Link, None] = {}
        #: By address: who listens there, and what makes the protocol of a connection.
        self._listening: dict[str, tuple[Process, Callable[[], Any]]] = {}
        self._count = 0

    @property
    def trace_hash(self) -> str:
        """What every byte that arrived, and its time, come to: two equal runs have the same."""
        return self._traced.hexdigest()

    def _trace(self, at_s: float, piece: bytes) -> None:
        self._traced.update(b"%r %d %b" % (at_s, len(piece), piece))

    def listen(self, server: Process, accept: Callable[[], Any], address: str = BROKER) -> None:
        """Let a process accept connections from now on, until it ends."""
        self._listening[address] = server, accept

    def refuse(self, address: str = BROKER) -> None:
        """Accept no connection any more."""
        self._listening.pop(address, None)

    def connect(
        self,
        client: Process,
        on_data: Callable[[bytes], None],
        on_lost: Callable[[], None],
        address: str = BROKER,
    ) -> Link | None:
        """Return a new connection, or None where no process listens."""
        server, accept = self._listening.get(address, (None, None))
        if accept is None or server is None or not server.is_alive:
            return None
        self._count += 1
        link = Link(self.random, self._trace, client, server, self._count, on_data, on_lost)
        self._links[link] = None

        def begin() -> None:
            if self._listening.get(address) == (server, accept):
                link.transport.begin(accept())
            else:
                link.cut()

        server.call_soon(begin)
        return link

    def end_process(self, process: Process, *, is_told: bool) -> None:
        """A process, or its machine, has ended, with both ends of its connections."""
        for address, (server, _) in tuple(self._listening.items()):
            if server is process:
                self.refuse(address)
        for link in tuple(self._links):
            if link.server is process:
                link.end_server(is_told=is_told)
            elif link.client is process:
                # The operating system tells the other side, or the machine is gone.
                link.close(may_arrive=is_told)
            else:
                continue
            del self._links[link]

    def disturb(self) -> None:
        """Let something happen to a random connection, or to none."""
        if not self._links:
            return
        link = self.random.choice(list(self._links))
        fate = self.random.random()
        if fate < 0.5:
            link.cut()
        elif fate < 0.75:
            link.halve()
        else:
            link.reads_slowly = link.has_read_slowly = True
            link.client.call_later(self.random.choice((0.01, 0.3, 2.0)), link.read_on)
            return
        del self._links[link]
