"""TCP connections between the nodes of a cluster. The catalog has the address of each node.

Both sides of a connection prove that they know the cluster's secret (`proofs`). Without TLS, all
later bytes are neither encrypted nor signed, so no stranger may be able to write to the network
between nodes. With TLS (`tls`), a node accepts connections as it accepts those of clients:
`Handshakes`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from magnetar.logging import get_logger
from magnetar.peers.addresses import Refused
from magnetar.peers.telling import News
from magnetar.peers.tls import PLACE, PeerTls
from magnetar.security.handshakes import SHUTDOWN_S, Handshakes, Verdict

#: The interval between two checks of the certificates' files, in seconds.
RELOAD_S = 10.0
_BACKLOG = 100
#: The most connections that are not encrypted yet. For one more, another is closed (`crowding`).
_HANDSHAKES_MAX = 64
#: The reasons that OpenSSL or a peer's alert gives when one side does not use TLS.
_PLAIN_TEXT = frozenset({"WRONG_VERSION_NUMBER", "SSLV3_ALERT_UNEXPECTED_MESSAGE"})

_log = get_logger("peers")


class TcpNetwork:
    """The address of this node, and those of its peers."""

    def __init__(
        self,
        bound: socket.socket,
        address_of: Callable[[int], tuple[str, int] | None],
        tls: PeerTls | None = None,
    ) -> None:
        """`bound`: a socket bound to this node's address; `listen` begins to accept on it.

        `address_of` returns a node's host and port; None: the catalog has no such node.
        """
        self._bound = bound
        self._address_of = address_of
        self._tls = tls
        self._server: asyncio.AbstractServer | Handshakes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._news = News()

    async def listen(self, accept: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        if self._tls is None:
            self._server = await loop.create_server(accept, sock=self._bound)
            return
        handshakes = Handshakes(
            loop,
            PLACE,
            self._tls.listening,
            _Open(),
            accept,
            on_failed=self._tell,
            open_max=_HANDSHAKES_MAX,
        )
        handshakes.start(self._bound, _BACKLOG)
        self._server = handshakes
        self._reload()

    async def dial(self, node_id: int, protocol: asyncio.Protocol) -> None:
        address = self._address_of(node_id)
        if address is None:
            raise OSError(f"the cluster has no node {node_id}")
        loop = asyncio.get_running_loop()
        if self._tls is None:
            await loop.create_connection(lambda: protocol, *address)
            return
        place = f"{address[0]}:{address[1]}"
        try:
            await loop.create_connection(
                lambda: protocol,
                *address,
                ssl=self._tls.dialling(),
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except ssl.SSLCertVerificationError as error:
            raise Refused(
                f"its certificate, at {place}, is not trusted: {error.verify_message}"
            ) from None
        except ssl.SSLError as error:
            raise Refused(f"no TLS with {place}: {_reason(error)}") from None
        except (ConnectionResetError, ConnectionAbortedError):
            raise OSError(f"{place} ended the connection before it was encrypted") from None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(self._server, Handshakes):
            self._server.stop()
        elif self._server is not None:
            self._server.close()
        else:
            self._bound.close()

    def _reload(self) -> None:
        assert self._tls is not None
        self._tls.reload()
        self._timer = asyncio.get_running_loop().call_later(RELOAD_S, self._reload)

    def _tell(self, address: str, place: str, reason: str) -> None:
        """Log why a handshake failed. The same reason is logged once a minute for each host."""
        host, _, _ = address.rpartition(":")
        if self._news.is_new(host, reason):
            _log.warning("handshake failed", listener=place, peer_address=address, reason=reason)


class _Open:
    """Lets every connection begin a handshake.

    `_HANDSHAKES_MAX` bounds the handshakes, and `ListeningPeers` the connections after them.
    """

    def enter(self, listener: str, host: str) -> Verdict:
        return Verdict()

    def leave(self, listener: str, host: str) -> None:
        """Do nothing: `enter` counts no connection."""


def _reason(error: ssl.SSLError) -> str:
    if error.reason in _PLAIN_TEXT:
        return "it speaks plain text; security.inter.broker.protocol must be the same on all nodes"
    return (error.reason or str(error)).lower().replace("_", " ")
