"""Where nodes listen to their peers: on one machine a socket in the directory of each node."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

SOCKET_NAME = "peer.sock"
#: Owner alone. The proofs do not rest on it.
_MODE = 0o600
_BACKLOG = 64


class Refused(OSError):
    """A peer is there, and no connection to it comes about until settings or certificates change.

    Its text says why.
    """


class PeerNetwork(Protocol):
    """How nodes reach each other."""

    async def listen(self, accept: Callable[[], asyncio.Protocol]) -> None:
        """Accept connections at the address of this node. Raises OSError."""
        ...

    async def dial(self, node_id: int, protocol: asyncio.Protocol) -> None:
        """Connect `protocol` to a peer. Raises OSError, Refused among them."""
        ...

    def close(self) -> None:
        """Accept no more."""
        ...


class LocalSockets:
    """Nodes on one machine: `peer.sock` in the directory of each."""

    def __init__(self, own_id: int, directory_of: Callable[[int], Path]) -> None:
        self._own_id = own_id
        self._directory_of = directory_of
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, accept: Callable[[], asyncio.Protocol]) -> None:
        listening = bind_local(self._directory_of(self._own_id), SOCKET_NAME)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(accept, sock=listening)

    async def dial(self, node_id: int, protocol: asyncio.Protocol) -> None:
        dialling = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        dialling.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            with short_path(self._directory_of(node_id), SOCKET_NAME) as path:
                await loop.sock_connect(dialling, path)
            await loop.create_unix_connection(lambda: protocol, sock=dialling)
        except BaseException:
            # Whatever it is, also a cancellation: the descriptor has no other owner.
            dialling.close()
            raise

    def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        unlink_local(self._directory_of(self._own_id), SOCKET_NAME)


def bind_local(directory: Path, name: str) -> socket.socket:
    """Return a socket in a directory that this process has locked; it listens. Raises OSError."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Before the bind: the socket's file has these rights from its first moment on.
    os.fchmod(listening.fileno(), _MODE)
    with short_path(directory, name) as path:
        # The directory is locked by this process, so what is left there is of a dead one.
        with suppress(FileNotFoundError):
            os.unlink(path)
        listening.bind(path)
    listening.listen(_BACKLOG)
    listening.setblocking(False)
    return listening


def unlink_local(directory: Path, name: str) -> None:
    """Remove the file of such a socket, if it is there: a copy of the directory would fail at it.

    Raises OSError.
    """
    with suppress(FileNotFoundError), short_path(directory, name) as path:
        os.unlink(path)


def connect_local(directory: Path, name: str) -> socket.socket:
    """Return a connection to such a socket. Raises OSError, also where it would have to wait."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # While a process stands still, its queue may be full: `connect` would wait until it ends.
    connected.setblocking(False)
    try:
        with short_path(directory, name) as path:
            connected.connect(path)
    except BaseException:
        connected.close()
        raise
    return connected


@contextmanager
def short_path(directory: Path, name: str) -> Iterator[str]:
    """Return a path to a socket in the directory that is short enough for an address: 107 bytes."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
