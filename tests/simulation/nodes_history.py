"""One history of several nodes: transactions over all of them, everything going wrong, a verdict.

Each node is a machine of its own, with its own disk, power and clock; the catalog is shared, as
that of workers on one machine. Messages between nodes go over the simulated network: they are
delayed, lost with their connection, repeated by who got no answer, and overtaken by later
connections. Nodes are killed, stopped, paused and started, each by itself.

    python -m tests.simulation.run --nodes --seeds 0-999
"""

from __future__ import annotations

from coordinator.transactions.metadata import TopicPartition
from logstore.disk.durability import Durability
from magnetar.broker import Broker
from magnetar.config.broker import BrokerConfig
from magnetar.storage.placing import make_internal, name_leaders
from tests.simulation.clients.idempotent_producer import IdempotentProducer
from tests.simulation.clients.reached_nodes import ReachedNodes, Routes
from tests.simulation.clients.reader import Reader
from tests.simulation.nemesis import Nemesis
from tests.simulation.several_nodes import INTERNAL, SeveralNodes
from tests.simulation.whole_history import Verdict
from tests.simulation.world.machine import Machine, Node
from tests.simulation.world.storage import SharedCatalog, StoredCatalog

RAGE_S = 4.0


class _Nodes(SeveralNodes):
    """The parts of one history."""

    rest_s = 8

    def __init__(self, seed: int) -> None:
        super().__init__(seed, RAGE_S)
        choice = self.random_of("durability").random()
        durability = Durability.PAGE_CACHE if choice < 0.1 else Durability.FSYNC
        ids = range(self.random_of("nodes").choice((2, 2, 3, 4)))
        self._stored = StoredCatalog()
        self.machines: dict[int, Machine] = {
            node_id: Machine(
                self.scheduler,
                self.network,
                self.random_of(f"machine {node_id}"),
                durability,
                INTERNAL,
                Node(node_id, ids, self._stored),
            )
            for node_id in ids
        }
        self.nemeses = [
            Nemesis(machine, self.network, self.random_of(f"nemesis {node_id}"))
            for node_id, machine in self.machines.items()
        ]
        self.routes = Routes(self.machines)

    def prepare(self) -> None:
        """Make the catalog as the supervisor of workers does before it forks them."""
        catalog = SharedCatalog(self._stored)
        settings = {name: int(value) for name, value in INTERNAL.items()}
        make_internal(catalog, BrokerConfig(settings))
        name_leaders(catalog, [*self.machines])

    def address_of(self, node_id: int) -> str:
        node = self.machines[node_id].node
        assert node is not None
        return node.address

    def producer(self, name: str, partition: TopicPartition) -> IdempotentProducer:
        return IdempotentProducer(
            name,
            self.connect(name, self._leader(partition)),
            partition,
            self.observations,
            self.random_of(name),
        )

    def _leader(self, partition: TopicPartition) -> int:
        leader = self.routes.leader(*partition)
        assert leader is not None
        return leader

    def readers(
        self, name: str, partitions: list[TopicPartition], *, is_committed: bool
    ) -> list[Reader]:
        """Return one reader for each node, of what that node leads."""
        by_node: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            by_node.setdefault(self._leader(partition), []).append(partition)
        return [
            Reader(
                name,
                self.connect(f"{name} of {node_id}", node_id),
                theirs,
                self.observations,
                self.random_of(f"{name} {node_id}"),
                is_committed=is_committed,
            )
            for node_id, theirs in sorted(by_node.items())
        ]

    def reached(self, name: str) -> ReachedNodes:
        connections = self.connect_all(name, may_arrive_late=False)
        return ReachedNodes(self.machines, self.routes, connections)

    def brokers(self) -> list[Broker]:
        return [machine.broker for machine in self.machines.values() if machine.broker]


def tell(seed: int, plant: str = "") -> Verdict:
    """Return what came of the history of this seed, with the fault of that name planted."""
    return _Nodes(seed).told(plant)


def warm_up() -> None:
    """Import and compile what histories need, so that processes can be copied from this one."""
    tell(0)
