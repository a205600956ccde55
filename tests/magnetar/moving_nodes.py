"""Nodes in one process whose partitions move: logs in a memory that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from logstore.segments.memory_ledger import MemoryLedger
from magnetar.broker import Broker
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import Listener
from magnetar.runtime.leader_changes import LeaderChanges
from magnetar.server.listening import bind_socket
from magnetar.storage.catalog import Catalog
from magnetar.storage.hand_over import HandOver
from magnetar.storage.leaders_catalog import LeadersCatalog
from magnetar.storage.logs import Logs
from tests.magnetar.nodes_in_one import NodesInOne

Key = tuple[str, int]


class SharedLedgers:
    """What all nodes store: a ledger of each partition, which the next leader goes on with."""

    def __init__(self) -> None:
        self._ledgers: dict[Key, MemoryLedger] = {}

    def open(self, logs: Logs, key: Key) -> MemoryLedger:
        """Return the ledger of a partition, for the node of these logs from now on."""
        ledger = self._ledgers.get(key)
        if ledger is None:
            ledger = self._ledgers[key] = MemoryLedger(logs._group_commit)
        assert ledger.segments.is_closed or not ledger.end_offset, f"{key} has two leaders"
        ledger._group_commit = logs._group_commit
        return ledger


class MovingNodes(NodesInOne):
    """The nodes 0 and up, whose partitions move between them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ledgers = SharedLedgers()

    async def start_node(self, node_id: int, settings: dict[str, str] | None = None) -> Broker:
        member = self._members[node_id]
        config = BrokerConfig({**member.config.static, **(settings or {})})
        sockets = dict(zip((one.name for one in member.listeners), member.sockets, strict=True))
        for each in self._members.values():
            directory = self._data_dir / "nodes" / str(each.config.node_id)
            directory.mkdir(parents=True, exist_ok=True)

        def bind(listener: Listener) -> object:
            bound = sockets[listener.name]
            return bound if bound.fileno() >= 0 else bind_socket(replace(listener))

        def open_storage(
            config: BrokerConfig, clock: Clock, fail: Callable[[BaseException], None]
        ) -> tuple[Logs, Catalog]:
            in_memory = BrokerConfig({**config.static, "durability": "memory"})
            logs = Logs.in_directory("nowhere", in_memory, clock, fail)

            # The seam to storage, which is the directory's own affair otherwise.
            seam: Any = logs._directory
            seam._ledger = lambda key, *_: self._ledgers.open(logs, key)
            return logs, Catalog(self._data_dir, is_shared=True)

        broker = Broker(
            config,
            on_failure=self.failures.append,
            open_storage=open_storage,
            bind=bind,  # type: ignore[arg-type]  # a socket, as the sockets of a member are
            members={each: one.listeners for each, one in self._members.items()},
        )
        broker._placement.moves = True
        await broker.start()
        await broker._announcing.ended()
        self.nodes[node_id] = broker
        return broker

    def leader_changes(self, node_id: int) -> LeaderChanges:
        """Return the part that a node has in who leads what."""
        broker = self.nodes[node_id]
        leaders = LeadersCatalog(lambda: broker.catalog)
        hand_over = HandOver(broker.topics, leaders, broker.epoch)
        return LeaderChanges(broker.topics, leaders, broker.nodes, hand_over)

    async def all_see(self) -> None:
        """Let every node read the catalog."""
        for broker in self.nodes.values():
            await broker.nodes.see_changes()

    async def die(self, node_id: int) -> int:
        """Kill a node and let its lease end; return its incarnation."""
        incarnation = self.nodes[node_id].epoch
        await self.kill(node_id)
        self.any().catalog.nodes.end_lease(node_id, incarnation)
        return incarnation
