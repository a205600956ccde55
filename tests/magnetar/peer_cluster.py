"""Nodes among each other in one process: by sockets, by TCP, by TLS."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from magnetar.config.security import SecurityConfig
from magnetar.peers.addresses import LocalSockets, PeerNetwork
from magnetar.peers.dialling import Own
from magnetar.peers.node_peers import CALL_TIMEOUT_S, NodePeers
from magnetar.peers.tables import PeerApi, PeerApis
from magnetar.peers.tcp import TcpNetwork
from magnetar.peers.tls import PeerTls
from magnetar.runtime.peer_messages import CatalogChangedRequest, CatalogChangedResponse
from magnetar.server.listening import socket_at
from magnetar.testing.certificates import COMMON_NAME, KeyPair, make, named
from wire.message import Message

SECRET = b"s" * 32
AUTHORITY = make(named((COMMON_NAME, "authority")))
NODE = make(named((COMMON_NAME, "node")), AUTHORITY)

Perform = Callable[[CatalogChangedRequest], Callable[[], Awaitable[Message]] | None]


def changed(version: int) -> CatalogChangedRequest:
    return CatalogChangedRequest(version=version)


def tls_settings(pair: KeyPair, authority: KeyPair, other: Mapping[str, object]) -> SecurityConfig:
    """Return the settings of `node_tls`."""
    return SecurityConfig(
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": pair.key_pem,
            "ssl.keystore.certificate.chain": pair.certificate_pem,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": authority.certificate_pem,
            **other,
        }
    )


def node_tls(
    pair: KeyPair = NODE,
    authority: KeyPair = AUTHORITY,
    host: str = "127.0.0.1",
    other: Mapping[str, object] = {},
) -> PeerTls:
    """Return the TLS of a node that shows `pair`, and believes what `authority` signs.

    `other`: settings in place of these.
    """
    settings = tls_settings(pair, authority, other)
    return PeerTls(lambda: settings, host)


class Cluster:
    """Nodes in one process, each with a socket in a directory of its own, or a TCP address."""

    def __init__(
        self, data_dir: Path, *, over_tcp: bool = False, tls: PeerTls | None = None
    ) -> None:
        """`tls`: of all nodes that are not given one of their own."""
        self._data_dir = data_dir
        self._over_tcp = over_tcp
        self._tls = tls
        self.addresses: dict[int, tuple[str, int]] = {}
        self._bound: list[socket.socket] = []
        self.failures: list[BaseException] = []
        self._nodes: list[NodePeers] = []
        #: The versions of the catalog that each node was told, in order.
        self.told: dict[int, list[int]] = {}

    def network(self, node_id: int, tls: PeerTls | None = None) -> PeerNetwork:
        if self._over_tcp:
            bound = socket_at("127.0.0.1", 0)
            self._bound.append(bound)
            self.addresses[node_id] = bound.getsockname()
            return TcpNetwork(bound, self.addresses.get, tls or self._tls)
        directory = self._data_dir / f"node-{node_id}"
        directory.mkdir(exist_ok=True)
        return LocalSockets(node_id, lambda other: self._data_dir / f"node-{other}")

    def apis(self, node_id: int) -> PeerApis:
        async def answered() -> Message:
            return CatalogChangedResponse()

        def perform(request: CatalogChangedRequest) -> Callable[[], Awaitable[Message]]:
            self.told.setdefault(node_id, []).append(request.version)
            return answered

        return {CatalogChangedRequest.api_key: PeerApi(CatalogChangedRequest, 0, perform)}

    async def start(
        self,
        node_id: int,
        *,
        incarnation: int = 0,
        secret: bytes = SECRET,
        perform: Perform | None = None,
        call_timeout_s: float = CALL_TIMEOUT_S,
        tls: PeerTls | None = None,
    ) -> NodePeers:
        own = Own("cluster", node_id, incarnation)
        node = NodePeers(own, secret, self.network(node_id, tls), lambda: (), call_timeout_s)
        apis = self.apis(node_id)
        if perform is not None:
            apis = {CatalogChangedRequest.api_key: PeerApi(CatalogChangedRequest, 0, perform)}
        await node.listen(apis, self.failures.append)
        self._nodes.append(node)
        return node

    def close(self) -> None:
        for node in self._nodes:
            node.close()
        for bound in self._bound:
            bound.close()
