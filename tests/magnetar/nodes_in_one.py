"""Several nodes in one process: a catalog on the disk, logs of their own, and peers by sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

from logstore.partition.log import PartitionLog
from magnetar.broker import Broker
from magnetar.cli.workers import WorkerNode, _open_storage, worker_nodes
from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import Listener
from magnetar.config.load import Given, load
from magnetar.server.listening import bind_socket
from magnetar.storage.placing import placed
from tests.magnetar.conftest import RawClient

_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "node.id": "0",
    "durability": "page-cache",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.healing.interval.ms": "600000",
}


class NodesInOne:
    """The nodes 0 and up, of a data directory."""

    def __init__(self, data_dir: Path, settings: dict[str, str] | None = None) -> None:
        values = {**_SETTINGS, "log.dirs": str(data_dir), **(settings or {})}
        given = [Given(name, value, "test") for name, value in values.items()]
        self._config: BrokerConfig = load(given).config
        self._data_dir = data_dir
        self._held = ExitStack()
        self._members: dict[int, WorkerNode] = {}
        self.nodes: dict[int, Broker] = {}
        self.failures: list[BaseException] = []
        self._clients: dict[int, RawClient] = {}

    async def start(self, number: int) -> None:
        """Start so many nodes, and make topic `a` with two partitions for each."""
        self._data_dir.mkdir(exist_ok=True)
        self._members = worker_nodes(self._config, range(number))
        self._held.enter_context(placed(self._data_dir, self._config, [*self._members]))
        for node_id in self._members:
            await self.start_node(node_id)
        self.nodes[0].topics.create("a", 2 * number)
        await self.nodes[0].nodes.tell_changes()

    async def start_node(self, node_id: int, settings: dict[str, str] | None = None) -> Broker:
        """Start a node that does not run; `settings` are changed since its last start."""
        member = self._members[node_id]
        config = BrokerConfig({**member.config.static, **(settings or {})})
        sockets = dict(zip((one.name for one in member.listeners), member.sockets, strict=True))

        def bind(listener: Listener) -> object:
            bound = sockets[listener.name]
            # The sockets of an earlier start were closed with it.
            return bound if bound.fileno() >= 0 else bind_socket(replace(listener))

        broker = Broker(
            config,
            on_failure=self.failures.append,
            open_storage=partial(_open_storage, self._data_dir),
            bind=bind,  # type: ignore[arg-type]  # a socket, as the sockets of a member are
            members={each: one.listeners for each, one in self._members.items()},
        )
        await broker.start()
        # No dialling is under way when a test ends at once: asyncio leaves such connections open.
        await broker._announcing.ended()
        self.nodes[node_id] = broker
        return broker

    async def kill(self, node_id: int) -> None:
        """End a node as `kill -9` does, for all that its files and its peers can tell."""
        broker = self.nodes.pop(node_id)
        if (client := self._clients.pop(node_id, None)) is not None:
            client.close()
        broker.logs._directory.abandon()
        assert broker.among_peers is not None and broker.watch is not None
        broker._announcing.cancel()
        broker.watch.stop()
        broker.among_peers.stop()
        for commit in broker.transactions.store.commits.under_way.values():
            commit.abandon()
        await broker.healing.stop()
        broker.transactions.store.expiry.stop()
        broker.retention.stop()
        broker.flushing.stop()
        await broker.cleaner.stop()
        broker.groups.stop()
        await broker.server.stop()
        broker.catalog.close()

    async def stop(self) -> None:
        """Stop every node that runs."""
        for client in self._clients.values():
            client.close()
        for broker in self.nodes.values():
            await broker.stop()
        self._held.close()

    async def client(self, node_id: int) -> RawClient:
        """Return the connection to a node."""
        if node_id not in self._clients:
            self._clients[node_id] = await self.another_client(node_id)
        return self._clients[node_id]

    async def another_client(self, node_id: int) -> RawClient:
        """Return a new connection to a node."""
        listener = self.nodes[node_id].listeners[0]
        return RawClient(*await asyncio.open_connection(listener.host, listener.port))

    # --- who has what

    def any(self) -> Broker:
        """Return some node that runs."""
        return next(iter(self.nodes.values()))

    def transactional_id(self, node_id: int) -> str:
        """Return an id that a node coordinates."""
        return next(
            name
            for number in count()
            if self.any().nodes.node_of(name := f"tx-{number}") == node_id
        )

    def group_id(self, node_id: int) -> str:
        """Return a group that a node coordinates."""
        return next(
            name
            for number in count()
            if self.any().nodes.node_of_group(name := f"group-{number}") == node_id
        )

    def partition(self, node_id: int) -> int:
        """Return a partition of `a` that a node leads."""
        leader_of = self.any().nodes.leader_of
        return next(index for index in count() if leader_of("a", index) == node_id)

    def log(self, node_id: int) -> PartitionLog:
        """Return the log of that partition."""
        return self.nodes[node_id].topics.partition("a", self.partition(node_id))


_Nodes = TypeVar("_Nodes", bound=NodesInOne)


@asynccontextmanager
async def two_of(nodes: _Nodes) -> AsyncIterator[_Nodes]:
    """Start two nodes, and stop them at the end, which none may have failed before."""
    await nodes.start(2)
    try:
        yield nodes
    finally:
        # Also for a test that has failed: what it leaves open would fail another one.
        await nodes.stop()
    assert not nodes.failures
