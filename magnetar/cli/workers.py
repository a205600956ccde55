"""The nodes of one supervisor: their settings, addresses and directories."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from logstore.disk.durability import Durability
from magnetar.broker import Broker, data_dir_of
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import Listener, parse_listeners
from magnetar.config.load import ConfigError
from magnetar.metrics import of_nodes
from magnetar.metrics.endpoint import MetricsEndpoint, OtherNodes
from magnetar.peers.addresses import bind_local, connect_local, unlink_local
from magnetar.server.listening import Bind, bind_socket
from magnetar.storage.catalog import Catalog
from magnetar.storage.logs import Logs
from magnetar.storage.placing import node_directory
from wire.address import PORT_MAX, address_text
from wire.types import INT32_MAX

_METRICS_SOCKET = "metrics.sock"


class WorkerNode(NamedTuple):
    """One node: its settings, and the sockets and listeners that it serves."""

    config: BrokerConfig
    listeners: list[Listener]
    sockets: list[socket.socket]

    def bind(self) -> Bind:
        """Return a function that gives the server its sockets."""
        # By the listener's name: the server may ask in another order.
        sockets = {
            listener.name: bound
            for listener, bound in zip(self.listeners, self.sockets, strict=True)
        }
        return lambda listener: sockets[listener.name]


def check_workers(config: BrokerConfig, count: int) -> None:
    """Raise ConfigError for settings that `count` nodes cannot obey."""
    if (last := config.node_id + count - 1) > INT32_MAX:
        raise ConfigError(
            f"node.id={config.node_id}: the last of {count} nodes would have id {last}, more than"
            f" {INT32_MAX}"
        )
    if Durability(config.durability) is Durability.MEMORY:
        raise ConfigError(
            "--workers needs a data directory that its nodes share; durability=memory has none."
            " Leave one of the two out."
        )


def worker_nodes(config: BrokerConfig, node_ids: Sequence[int]) -> dict[int, WorkerNode]:
    """Take the addresses of all nodes; return each node by its id. Raises ConfigError."""
    data_dir, count, given = data_dir_of(config), len(node_ids), parse_listeners(config)
    for listener in given:
        if (last := listener.port + count - 1) > PORT_MAX:
            raise ConfigError(
                f"listener {listener.name}: the last of {count} nodes would have port {last}"
            )
    found = {}
    for number, node_id in enumerate(node_ids):
        listeners, sockets = [], []
        for listener in given:
            bound = bind_socket(_shifted(listener, number))
            sockets.append(bound)
            listeners.append(_shifted(listener, number).bound_to(bound.getsockname()[1]))
        own = _config_of(config, node_id, node_directory(data_dir, node_id), listeners, count)
        found[node_id] = WorkerNode(own, listeners, sockets)
    return found


def _shifted(listener: Listener, number: int) -> Listener:
    """Return the listener of node `number`, from 0: `number` is added to its ports, except to 0."""
    port, advertised = listener.port, listener.advertised_port
    return replace(
        listener,
        port=port + number if port else 0,
        advertised_port=advertised + number if advertised else 0,
    )


def _config_of(
    config: BrokerConfig, node_id: int, directory: Path, listeners: list[Listener], count: int
) -> BrokerConfig:
    """Return the settings of one node; what bounds memory is divided among all."""
    values = {
        **config.static,
        "node.id": node_id,
        "broker.id": node_id,
        "log.dirs": [str(directory)],
        "listeners": [_text(one.name, one.host, one.port) for one in listeners],
        "queued.max.request.bytes": config.queued_max_request_bytes // count,
    }
    if "advertised.listeners" in config.static:
        values["advertised.listeners"] = [
            _text(one.name, one.advertised_host, one.advertised_port) for one in listeners
        ]
    return BrokerConfig(values)


def _text(name: str, host: str, port: int) -> str:
    return f"{name}://{address_text(host, port)}"


def broker_of(
    node_id: int, nodes: dict[int, WorkerNode], data_dir: Path, make: Callable[..., Broker]
) -> Broker:
    """Return the broker of one node, in its own process. Closes the sockets of the others.

    `make` makes it, of the arguments that `Broker` has.
    """
    own = nodes[node_id]
    close_others(node_id, nodes)
    return make(
        own.config,
        open_storage=partial(_open_storage, data_dir),
        bind=own.bind(),
        members={each: member.listeners for each, member in nodes.items()},
    )


def close_others(node_id: int, nodes: Mapping[int, WorkerNode]) -> None:
    """Close what the supervisor has bound for the other nodes. In the process of one."""
    for other_id, other in nodes.items():
        if other_id != node_id:
            for each in other.sockets:
                each.close()


class NodeMetrics:
    """A node's part in the one metrics endpoint of all: the first node serves it, and asks the
    others."""

    def __init__(
        self,
        node_id: int,
        data_dir: Path,
        node_ids: Iterable[int],
        bound: socket.socket | None,
    ) -> None:
        """`bound`: the endpoint's address, taken before the nodes were forked; None: no metrics are
        asked for. On the event loop of the node."""
        self._node_id = node_id
        self._data_dir = data_dir
        self._others = [each for each in node_ids if each != node_id]
        self._bound = bound
        self._serves = all(node_id < each for each in self._others)
        self._endpoint: MetricsEndpoint | None = None
        self._server: asyncio.AbstractServer | None = None

    def begin(self) -> None:
        """Answer that the node is starting. Call it before the broker starts."""
        if self._bound is None:
            return
        if self._serves:
            self._endpoint = MetricsEndpoint(self._bound)
        else:
            self._bound.close()

    async def start(self, broker: Broker) -> None:
        """Serve what the broker has."""
        if self._endpoint is not None:
            connect = {
                each: partial(connect_local, node_directory(self._data_dir, each), _METRICS_SOCKET)
                for each in self._others
            }
            others = OtherNodes(self._node_id, connect)
            self._endpoint.start(broker.gather_metrics, others, lambda: broker.server.is_serving)
        elif self._bound is not None:
            own = node_directory(self._data_dir, self._node_id)
            listening = bind_local(own, _METRICS_SOCKET)
            self._server = await of_nodes.serve(listening, broker.gather_metrics)

    async def stop(self) -> None:
        """Serve no more. Call it before the broker stops, since its figures are read."""
        if self._server is not None:
            self._server.close()
            unlink_local(node_directory(self._data_dir, self._node_id), _METRICS_SOCKET)
        elif self._endpoint is not None:
            await self._endpoint.stop()


def _open_storage(
    data_dir: Path,
    config: BrokerConfig,
    clock: Clock,
    fail: Callable[[BaseException], None],
    open_logs: Callable[..., Logs] = Logs.in_directory,
) -> tuple[Logs, Catalog]:
    """Open the node's own logs, and the catalog of all nodes. Raises ConfigError, and OSError.

    The supervisor has used the directory before. So an OSError is no mistake in the settings, which
    would end all nodes: this node's disk has failed since, or a limit is reached.
    """
    logs = open_logs(str(data_dir_of(config)), config, clock, fail)
    return logs, Catalog(data_dir, Durability(config.durability), is_shared=True)
