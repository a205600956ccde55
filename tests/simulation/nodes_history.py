"""One history of several nodes: transactions over all of them, everything going wrong, a verdict.

Each node is a machine of its own, with its own disk, power and clock; the catalog is shared, as
that of workers on one machine. Messages between nodes go over the simulated network: they are
delayed, lost with their connection, repeated by who got no answer, and overtaken by later
connections. Nodes are killed, stopped, paused and started, each by itself.

    python -m tests.simulation.run --nodes --seeds 0-999
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from coordinator.groups.offsets.committed import OffsetKey
from coordinator.transactions.metadata import TopicPartition
from logstore.disk.durability import Durability
from magnetar.config.broker import BrokerConfig
from magnetar.runtime.commit import VISIBLE_TIMEOUT_MS
from magnetar.storage.placing import make_internal, name_leaders
from tests.simulation.checker import judge
from tests.simulation.clients.connection import Connection
from tests.simulation.clients.idempotent_producer import IdempotentProducer
from tests.simulation.clients.reached_nodes import ReachedNodes, Routes
from tests.simulation.clients.reader import Reader
from tests.simulation.clients.topics import create_topics
from tests.simulation.ending import (
    all_partitions,
    committed_values,
    extent_of,
    name_of_last_reader,
    read_all,
)
from tests.simulation.history import Outcome, check_nodes
from tests.simulation.nemesis import Nemesis
from tests.simulation.observations import Observations
from tests.simulation.planted_faults import check_plant, planted
from tests.simulation.whole_history import Client, Verdict
from tests.simulation.workers import AGAIN, TARGETS, TIMEOUT_MS, Worker
from tests.simulation.world.entropy import seeded_entropy
from tests.simulation.world.log_lines import LogLines, recorded_logs
from tests.simulation.world.machine import HEALING_INTERVAL_MS, Machine, Node
from tests.simulation.world.network import Network
from tests.simulation.world.process import Process, Scheduler
from tests.simulation.world.storage import SharedCatalog, StoredCatalog
from wire.error_code import ErrorCode

TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "a": (2, {}),
    "b": (2, {}),
    "in": (4, {}),
    "plain": (3, {}),
}
INTERNAL = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
RAGE_S = 4.0
#: What a client is told while another node does not answer, or this one knows less than another.
NODES_AGAIN = AGAIN | {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


@dataclass
class _Nodes:
    """The parts of one history."""

    seed: int
    observations: Observations = field(default_factory=Observations)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.random_of("scheduler"))
        self.network = Network(self.random_of("network"))
        choice = self.random_of("durability").random()
        durability = Durability.PAGE_CACHE if choice < 0.1 else Durability.FSYNC
        self.process = Process(self.scheduler, self.random_of("clients"))
        self.log = LogLines()
        self._connections: list[Connection] = []
        self._count = 0
        ids = range(self.random_of("nodes").choice((2, 2, 3, 4)))
        stored = StoredCatalog()
        self.machines = {
            node_id: Machine(
                self.scheduler,
                self.network,
                self.random_of(f"machine {node_id}"),
                durability,
                INTERNAL,
                Node(node_id, ids, stored),
            )
            for node_id in ids
        }
        self.nemeses = [
            Nemesis(machine, self.network, self.random_of(f"nemesis {node_id}"))
            for node_id, machine in self.machines.items()
        ]
        self.routes = Routes(self.machines)
        self._stored = stored

    def random_of(self, concern: str) -> Random:
        """Return the chance of one concern, so that one does not disturb another."""
        return Random(f"{self.seed} {concern}")

    def make_catalog(self) -> None:
        """Make the catalog as the supervisor of workers does before it forks them."""
        catalog = SharedCatalog(self._stored)
        make_internal(catalog, BrokerConfig(dict(_internal_settings())))
        name_leaders(catalog, [*self.machines])

    def connect(self, name: str, node_id: int, *, may_arrive_late: bool = True) -> Connection:
        node = self.machines[node_id].node
        assert node is not None
        connection = Connection(
            self.network,
            self.process,
            name,
            may_arrive_late=may_arrive_late,
            address=node.address,
        )
        self._connections.append(connection)
        return connection

    def clients(self) -> list[Client]:
        """Return the clients of this history, of every kind."""
        random = self.random_of("kinds")
        written = [TopicPartition("plain", index) for index in range(3)]
        made: list[Client] = []
        for index in range(random.randint(2, 4)):
            made.append(self._worker(f"worker{index}", random))
        for index in range(random.randint(1, 2)):
            partition = random.choice(written)
            name = f"producer{index}"
            made.append(
                IdempotentProducer(
                    name,
                    self.connect(name, self._leader(partition)),
                    partition,
                    self.observations,
                    self.random_of(name),
                )
            )
        for is_committed in (False, True):
            name = f"reader{'-committed' if is_committed else ''}"
            made += self._readers(name, [*written, *TARGETS], is_committed=is_committed)
        return made

    def _leader(self, partition: TopicPartition) -> int:
        leader = self.routes.leader(*partition)
        assert leader is not None
        return leader

    def _readers(
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

    def _worker(self, name: str, random: Random) -> Worker:
        connections = {
            node_id: self.connect(name, node_id, may_arrive_late=False) for node_id in self.machines
        }
        number = random.randrange(3)
        return Worker(
            ReachedNodes(self.machines, self.routes, connections),
            self.observations.history,
            self.random_of(name),
            name,
            f"tx{number}",
            OffsetKey(f"g{number}", "in", number),
            is_v2=random.random() < 0.5,
            again=NODES_AGAIN,
            again_of_nodes=NODES_AGAIN,
        )

    async def story(self) -> None:
        self.make_catalog()
        await self._all(nemesis.revive() for nemesis in self.nemeses)
        await create_topics(self.connect("setup", 0), TOPICS)
        await self._until_known()
        clients = self.clients()
        tasks = [asyncio.ensure_future(client.run()) for client in clients]
        await self._all(nemesis.rage(RAGE_S) for nemesis in self.nemeses)
        for client in clients:
            client.is_ending = True
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        # The last timeout, the last delayed request and its own; calls to peers that hang; a sweep.
        await asyncio.sleep((2 * TIMEOUT_MS + 2 * HEALING_INTERVAL_MS) / 1000 + 14)
        for nemesis in self.nemeses:
            if nemesis.random.random() < 0.3:
                await nemesis.restart()
        await asyncio.sleep(HEALING_INTERVAL_MS / 1000 + 8)
        for is_committed in (False, True):
            await self._read_all(is_committed)

    async def _until_known(self) -> None:
        """Return when every node knows every topic."""
        names = [*TOPICS]
        while not all(
            machine.broker is not None
            and machine.is_up
            and all(machine.broker.topics.by_name(name) for name in names)
            for machine in self.machines.values()
        ):
            await asyncio.sleep(0.1)

    async def _all(self, works: Iterator[Any]) -> None:
        await asyncio.gather(*works)

    async def _read_all(self, is_committed: bool) -> None:
        counts = {name: count for name, (count, _) in TOPICS.items()}
        name = name_of_last_reader(is_committed=is_committed)
        readers = self._readers(name, all_partitions(counts), is_committed=is_committed)
        await read_all(readers, counts, self.observations, is_committed=is_committed)

    def verdict(self) -> Verdict:
        observations = self.observations
        committed = committed_values(observations)
        brokers = [machine.broker for machine in self.machines.values() if machine.broker]
        witnesses = [
            *judge(observations, {}),
            *invisible(observations),
            *(check_nodes(observations.history, brokers, committed) if committed else ()),
            *(found for each in self._connections for found in each.witnesses),
            *(
                f"failed: node {node_id}: {failure!r}"
                for node_id, machine in self.machines.items()
                for failure in machine.failures
            ),
        ]
        return Verdict(
            self.seed,
            witnesses,
            self.network.trace_hash,
            extent_of(
                observations, sum(machine.incarnations for machine in self.machines.values())
            ),
        )


def _internal_settings() -> Iterator[tuple[str, int]]:
    for name, value in INTERNAL.items():
        yield name, int(value)


def invisible(seen: Observations) -> Iterator[str]:
    """A commit that has returned in time holds no reader back that asks after it, on any node.

    An older transaction that is open may still do so: then the stable offset is that one's.
    """
    returned = _returned(seen)
    for fetched in seen.fetched:
        found = returned.get((fetched.partition, fetched.last_stable_offset))
        if fetched.is_committed and found is not None and found[0] < fetched.asked_s:
            yield (
                f"invisible: {found[1]} had returned at {found[0]}, and holds back a reader of"
                f" {fetched.partition} at {fetched.asked_s}"
            )


def _returned(seen: Observations) -> dict[tuple[TopicPartition, int], tuple[float, str]]:
    """Return, by partition and first offset there, the commits that have returned: when, and which.

    Without those that took as long as the bound: they may have been answered before their markers.
    """
    offsets = {
        one.value: one.offset
        for (_, is_committed), records in seen.final.items()
        if is_committed
        for one in records
    }
    returned: dict[tuple[TopicPartition, int], tuple[float, str]] = {}
    for one in seen.history.transactions:
        took_s = one.ended_s - one.end_asked_s
        if one.outcome is not Outcome.COMMITTED or took_s >= VISIBLE_TIMEOUT_MS / 1000:
            continue
        for partition, values in one.values.items():
            found = [offsets[value] for value in values if value in offsets]
            if found:
                returned[partition, min(found)] = (one.ended_s, one.name)
    return returned


def tell(seed: int, plant: str = "") -> Verdict:
    """Return what came of the history of this seed, with the fault of that name planted."""
    nodes = _Nodes(seed)
    with recorded_logs(nodes.log), planted(plant), seeded_entropy(nodes.random_of("entropy")):
        try:
            nodes.scheduler.run(nodes.process, nodes.story())
        except Exception:
            nodes.observations.witnesses.append(f"stuck: {traceback.format_exc()}")
        if plant:
            failed = [one for each in nodes.machines.values() for one in each.failures]
            check_plant((*failed, *nodes.log.errors()))
        verdict = nodes.verdict()
        nodes.scheduler.end()
    return verdict


def warm_up() -> None:
    """Import and compile what histories need, so that processes can be copied from this one."""
    tell(0)
