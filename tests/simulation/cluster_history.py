"""One history of a cluster whose partitions move: take-overs, hand-overs, zombies, and a verdict.

The nodes have no disks. The catalog and the logs are in one simulated database, on the way to which
commits are lost, late, and of unknown outcome, and which fails over to a standby. Nodes are killed,
stay away for longer than their leases, are stopped for longer than that and wake, hand over what
they lead at their end, and get their share when they are back. The clients are those of histories
of several nodes, and look for the leaders in the catalog.

    python -m tests.simulation.run --cluster --seeds 0-999
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from coordinator.groups.offsets.committed import OffsetKey
from coordinator.transactions.metadata import TopicPartition
from tests.simulation.checker import judge
from tests.simulation.clients.connection import Connection
from tests.simulation.clients.idempotent_producer import IdempotentProducer
from tests.simulation.clients.reader import Reader
from tests.simulation.clients.routed import CatalogRoutes, ReachedCluster, RoutedConnection
from tests.simulation.clients.topics import create_topics
from tests.simulation.ending import (
    all_partitions,
    committed_values,
    extent_of,
    name_of_last_reader,
    read_all,
)
from tests.simulation.history import check_nodes
from tests.simulation.nodes_history import INTERNAL, NODES_AGAIN, TOPICS, invisible
from tests.simulation.observations import Observations
from tests.simulation.planted_faults import check_plant, planted
from tests.simulation.whole_history import Client, Verdict
from tests.simulation.workers import TARGETS, TIMEOUT_MS, Worker
from tests.simulation.world.cluster_machine import ClusterMachine
from tests.simulation.world.entropy import seeded_entropy
from tests.simulation.world.log_lines import LogLines, recorded_logs
from tests.simulation.world.machine import HEALING_INTERVAL_MS
from tests.simulation.world.network import Network
from tests.simulation.world.process import Process, ProcessEnded, Scheduler
from tests.simulation.world.shared_storage import SharedStorage
from wire.error_code import ErrorCode

RAGE_S = 20.0
#: What a client is told besides while a coordinator moves.
_AGAIN = NODES_AGAIN | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
#: Longer than a lease, and than the second that a node takes to look.
_AWAY_S = 9.0


@dataclass
class ClusterNemesis:
    """What happens to one node."""

    machine: ClusterMachine
    network: Network
    storage: SharedStorage
    random: Random

    async def rage(self, seconds: float) -> None:
        """Disturb for that long; at the end the node is up."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while loop.time() < end_s:
            await asyncio.sleep(self.random.choice((0.1, 0.5, 1.0, 3.0)))
            await self.revive()
            await self._strike()
        await self.revive()

    async def _strike(self) -> None:
        chance, machine = self.random.random(), self.machine
        if chance < 0.3:
            self.network.disturb()
        elif chance < 0.45:
            machine.kill()
        elif chance < 0.55:
            machine.kill()
            # The others take over what it led.
            await asyncio.sleep(_AWAY_S)
        elif chance < 0.7 and machine.process is not None:
            # The longest of them find themselves fenced.
            machine.process.stop_for(self.random.choice((0.2, 1.0, 5.2, _AWAY_S)))
        elif chance < 0.78 and machine.store is not None:
            store = machine.store
            store.is_cut = True
            await asyncio.sleep(self.random.choice((0.3, 3.0, _AWAY_S)))
            store.is_cut = False
        elif chance < 0.85:
            self.storage.logs.fail_over()
        elif chance < 0.9:
            machine.wall.set_ahead(self.random.choice((0, 60_000, -60_000)))
        else:
            await self.restart()

    async def restart(self) -> None:
        """Stop the node cleanly, and start it again."""
        if not self.machine.is_up:
            return
        stopping = self.machine.stop()
        while self.machine.is_alive:
            await asyncio.sleep(0.01)
        if stopping.done():
            with suppress(ProcessEnded):
                stopping.result()
        await self.revive()

    async def revive(self) -> None:
        """Return when the node is up, after as many starts as it takes."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 120.0
        while not self.machine.is_up:
            if not self.machine.is_alive:
                self.machine.start()
            await asyncio.sleep(0.01)
            assert loop.time() < end_s, f"{self.machine.address} does not start"


@dataclass
class _Cluster:
    """The parts of one history."""

    seed: int
    rage_s: float = RAGE_S
    observations: Observations = field(default_factory=Observations)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.random_of("scheduler"))
        self.network = Network(self.random_of("network"))
        self.process = Process(self.scheduler, self.random_of("clients"))
        self.log = LogLines()
        self.storage = SharedStorage(self.scheduler)
        self._connections: list[Connection] = []
        ids = range(self.random_of("nodes").choice((2, 3, 3, 4)))
        self.machines = {
            node_id: ClusterMachine(
                self.scheduler,
                self.network,
                self.random_of(f"machine {node_id}"),
                node_id,
                self.storage,
                INTERNAL,
            )
            for node_id in ids
        }
        self.nemeses = [
            ClusterNemesis(machine, self.network, self.storage, self.random_of(f"nemesis {each}"))
            for each, machine in self.machines.items()
        ]
        self.routes = CatalogRoutes(self.storage.read)

    def random_of(self, concern: str) -> Random:
        """Return the chance of one concern, so that one does not disturb another."""
        return Random(f"{self.seed} {concern}")

    def connect(self, name: str, *, may_arrive_late: bool = True) -> dict[int, Connection]:
        """Return a connection of a client to each node."""
        made = {
            node_id: Connection(
                self.network,
                self.process,
                name,
                may_arrive_late=may_arrive_late,
                address=machine.address,
            )
            for node_id, machine in self.machines.items()
        }
        self._connections += made.values()
        return made

    def clients(self) -> list[Client]:
        """Return the clients of this history, of every kind."""
        random = self.random_of("kinds")
        written = [TopicPartition("plain", index) for index in range(3)]
        made: list[Client] = [
            self._worker(f"worker{index}", random) for index in range(random.randint(2, 4))
        ]
        for index in range(random.randint(1, 2)):
            partition = random.choice(written)
            name = f"producer{index}"
            routed: Any = RoutedConnection(self.routes, self.connect(name), partition)
            made.append(
                IdempotentProducer(
                    name,
                    routed,
                    partition,
                    self.observations,
                    self.random_of(name),
                    may_begin_late=True,
                )
            )
        for is_committed in (False, True):
            name = f"reader{'-committed' if is_committed else ''}"
            made += self._readers(name, [*written, *TARGETS], is_committed=is_committed)
        return made

    def _readers(
        self, name: str, partitions: list[TopicPartition], *, is_committed: bool
    ) -> list[Reader]:
        """Return one reader for each partition, which follows its leaders."""
        readers = []
        for partition in partitions:
            routed: Any = RoutedConnection(
                self.routes, self.connect(f"{name} of {partition}"), partition
            )
            chance = self.random_of(f"{name} {partition}")
            readers.append(
                Reader(
                    name, routed, [partition], self.observations, chance, is_committed=is_committed
                )
            )
        return readers

    def _worker(self, name: str, random: Random) -> Worker:
        number = random.randrange(3)
        return Worker(
            ReachedCluster(
                self.routes,
                self.connect(name, may_arrive_late=False),
                lambda: sum(machine.incarnations for machine in self.machines.values()),
                self.machines[0].wall.now_ms,
            ),
            self.observations.history,
            self.random_of(name),
            name,
            f"tx{number}",
            OffsetKey(f"g{number}", "in", number),
            is_v2=random.random() < 0.5,
            again=_AGAIN,
            again_of_nodes=_AGAIN,
        )

    async def story(self) -> None:
        await self._all(nemesis.revive() for nemesis in self.nemeses)
        await create_topics(self.connect("setup")[0], TOPICS)
        await self._until_known()
        clients = self.clients()
        tasks = [asyncio.ensure_future(client.run()) for client in clients]
        await self._all(nemesis.rage(self.rage_s) for nemesis in self.nemeses)
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
        await asyncio.sleep(HEALING_INTERVAL_MS / 1000 + 12)
        for is_committed in (False, True):
            await self._read_all(is_committed)

    async def _until_known(self) -> None:
        """Return when every node knows every topic."""
        while not all(
            machine.broker is not None
            and machine.is_up
            and all(machine.broker.topics.by_name(name) for name in TOPICS)
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
        brokers = [
            machine.broker
            for machine in self.machines.values()
            if machine.broker is not None and machine.is_up
        ]
        witnesses = [
            *judge(observations, {}),
            *invisible(observations),
            *(check_nodes(observations.history, brokers, committed) if committed else ()),
            *(found for each in self._connections for found in each.witnesses),
            *(
                f"failed: {machine.address}: {failure!r}"
                for machine in self.machines.values()
                for failure in machine.failures
            ),
        ]
        starts = sum(machine.incarnations for machine in self.machines.values())
        return Verdict(
            self.seed, witnesses, self.network.trace_hash, extent_of(observations, starts)
        )


def tell(seed: int, plant: str = "", *, rage_s: float = RAGE_S) -> Verdict:
    """Return what came of the history of this seed, with the fault of that name planted."""
    cluster = _Cluster(seed, rage_s)
    with recorded_logs(cluster.log), planted(plant), seeded_entropy(cluster.random_of("entropy")):
        try:
            cluster.scheduler.run(cluster.process, cluster.story())
        except Exception:
            cluster.observations.witnesses.append(f"stuck: {traceback.format_exc()}")
        if plant:
            failed = [one for each in cluster.machines.values() for one in each.failures]
            check_plant((*failed, *cluster.log.errors()))
        verdict = cluster.verdict()
        cluster.scheduler.end()
    return verdict


def warm_up() -> None:
    """Import and compile what histories need, so that processes can be copied from this one."""
    tell(0, rage_s=0.1)
