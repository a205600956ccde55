"""Several nodes, as the workers of `tests.simulation.workers` reach them: each by its requests."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from logstore.disk.durability import Durability
from tests.simulation.clients.connection import Connection
from tests.simulation.simulated_broker import Gone
from tests.simulation.world.machine import Machine
from wire.message import Message
from wire.messages.describe_transactions import DescribeTransactionsRequest
from wire.messages.offset_fetch import OffsetFetchRequest
from wire.messages.produce import ProduceRequest
from wire.messages.txn_offset_commit import TxnOffsetCommitRequest

M = TypeVar("M", bound=Message)


class Routing(ABC):
    """Which node a request belongs to. None: no node, for now."""

    @abstractmethod
    def leader(self, topic: str, partition: int) -> int | None:
        """Return the node that leads a partition."""

    @abstractmethod
    def node_of_group(self, group_id: str) -> int | None:
        """Return the node that coordinates a group."""

    @abstractmethod
    def node_of_id(self, transactional_id: str) -> int | None:
        """Return the node that coordinates a transactional id."""

    def node_of(self, request: Message) -> int | None:
        """Return the node that a worker's request is for."""
        if isinstance(request, ProduceRequest):
            # Of its first partition: the others may have other leaders, whose answer says so.
            topic = request.topic_data[0]
            return self.leader(topic.name, topic.partition_data[0].index)
        if isinstance(request, OffsetFetchRequest):
            return self.node_of_group(request.groups[0].group_id)
        if isinstance(request, TxnOffsetCommitRequest):
            return self.node_of_group(request.group_id)
        if isinstance(request, DescribeTransactionsRequest):
            # Those of one family: all have one coordinator.
            return self.node_of_id(request.transactional_ids[0])
        named: Any = request
        transactional_id = getattr(request, "v3_and_below_transactional_id", None)
        if transactional_id is None:
            transactional_id = named.transactional_id
        return self.node_of_id(transactional_id)


class Routes(Routing):
    """As Metadata and FindCoordinator would tell, of the first node that can be asked."""

    def __init__(self, machines: Mapping[int, Machine]) -> None:
        self._machines = machines

    def leader(self, topic: str, partition: int) -> int | None:
        return self._ask(lambda nodes: nodes.leader_of(topic, partition))

    def node_of_group(self, group_id: str) -> int | None:
        return self._ask(lambda nodes: nodes.node_of_group(group_id))

    def node_of_id(self, transactional_id: str) -> int | None:
        return self._ask(lambda nodes: nodes.node_of(transactional_id))

    def _ask(self, question: Callable[[Any], int | None]) -> int | None:
        for machine in self._machines.values():
            if machine.is_up and machine.broker is not None:
                return question(machine.broker.nodes)
        return None


class ReachedNodes:
    """One worker's way to the nodes, with a connection to each."""

    def __init__(
        self,
        machines: Mapping[int, Machine],
        routes: Routes,
        connections: Mapping[int, Connection],
    ) -> None:
        self._machines = machines
        self._routes = routes
        self._connections = connections
        self._tasks: dict[asyncio.Task[Any], None] = {}

    @property
    def durability(self) -> Durability:
        return self._machines[0].durability

    @property
    def incarnations(self) -> int:
        return sum(machine.incarnations for machine in self._machines.values())

    def now_ms(self) -> int:
        return self._machines[0].wall.now_ms()

    async def call(self, request: Message, response_class: type[M], version: int) -> M:
        while (node_id := self._routes.node_of(request)) is None:
            await asyncio.sleep(0.05)
        try:
            return await self._connections[node_id].ask(request, response_class, version)
        except Gone:
            while not self._machines[node_id].is_up:
                # A client waits until the node is there again.
                await asyncio.sleep(0.05)
            raise

    def mine(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        self._tasks[task] = None
        return task
