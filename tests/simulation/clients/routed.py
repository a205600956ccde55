"""Ways to the nodes of a cluster whose leaders change, for clients that know of one broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from coordinator.partitioning import partition_for
from coordinator.transactions import joint
from coordinator.transactions.metadata import TopicPartition
from logstore.disk.durability import Durability
from magnetar.storage.catalog import Catalog
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.simulation.clients.connection import TIMEOUT_S, Connection
from tests.simulation.clients.reached_nodes import Routing
from tests.simulation.families import SEPARATOR
from tests.simulation.simulated_broker import Gone
from wire.message import Message
from wire.messages.init_producer_id import InitProducerIdRequest

M = TypeVar("M", bound=Message)


class State(NamedTuple):
    """When this is as it was, so is the catalog."""

    writes: int
    """How many rows were written so far."""
    fail_overs: int


class CatalogRoutes(Routing):
    """By the catalog: what the clients' metadata says sooner or later."""

    def __init__(self, catalog: Callable[[], Catalog], state: Callable[[], State]) -> None:
        self._catalog = catalog
        self._state = state
        self._looked_at: State | None = None
        self._read_at: tuple[int, int] | None = None
        self._leaders: dict[str, list[int]] = {}

    def leader(self, topic: str, partition: int) -> int | None:
        leaders = self._of(topic)
        return leaders[partition] if partition < len(leaders) else None

    def node_of_group(self, group_id: str) -> int | None:
        shard = partition_for(group_id, len(self._of(CONSUMER_OFFSETS)))
        return self.leader(CONSUMER_OFFSETS, shard)

    def node_of_id(self, transactional_id: str) -> int | None:
        count = len(self._of(TRANSACTION_STATE))
        shard = joint.coordinator_partition(transactional_id, SEPARATOR, count)
        return self.leader(TRANSACTION_STATE, shard)

    def _of(self, topic: str) -> list[int]:
        # Every request comes here, and a lease is written more often than a leader.
        if (state := self._state()) != self._looked_at:
            self._looked_at = state
            self._read(state)
        return self._leaders.get(topic, [])

    def _read(self, state: State) -> None:
        catalog = self._catalog()
        # A standby that took over counts its changes from what it has.
        if (read_at := (state.fail_overs, catalog.changes.count())) != self._read_at:
            self._read_at = read_at
            self._leaders = {
                row.name: [one.node_id for one in row.leaders] for row in catalog.topics()
            }


class RoutedConnection:
    """One client's connections to all nodes; each request goes to the leader of one partition."""

    def __init__(
        self,
        routes: CatalogRoutes,
        connections: Mapping[int, Connection],
        partition: TopicPartition,
    ) -> None:
        self._routes = routes
        self._connections = connections
        self._partition = partition

    @property
    def is_open(self) -> bool:
        node_id = self._routes.leader(*self._partition)
        return node_id is not None and self._connections[node_id].is_open

    async def ask(
        self, request: Message, response_class: type[M], version: int, timeout_s: float = TIMEOUT_S
    ) -> M:
        """Return the leader's answer. Gone: none came."""
        node_id = self._routes.leader(*self._partition)
        if isinstance(request, InitProducerIdRequest):
            # Any node gives ids: the first, to make it simple.
            node_id = min(self._connections)
        if node_id is None:
            raise Gone
        return await self._connections[node_id].ask(request, response_class, version, timeout_s)


class ReachedCluster:
    """One worker's way to the nodes of a cluster."""

    def __init__(
        self,
        routes: CatalogRoutes,
        connections: Mapping[int, Connection],
        incarnations: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._routes = routes
        self._connections = connections
        self._incarnations = incarnations
        self._now_ms = now_ms
        self._tasks: dict[asyncio.Task[Any], None] = {}

    @property
    def durability(self) -> Durability:
        return Durability.FSYNC

    @property
    def incarnations(self) -> int:
        return self._incarnations()

    def now_ms(self) -> int:
        return self._now_ms()

    async def call(self, request: Message, response_class: type[M], version: int) -> M:
        """Return an answer of the node that the request is for. Gone: none came."""
        while (node_id := self._routes.node_of(request)) is None:
            await asyncio.sleep(0.05)
        try:
            return await self._connections[node_id].ask(request, response_class, version)
        except Gone:
            # As long as a client backs off. A dead node's partitions have another leader soon.
            await asyncio.sleep(0.2)
            raise

    def mine(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        self._tasks[task] = None
        return task
