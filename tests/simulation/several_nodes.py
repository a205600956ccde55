"""What histories of several nodes have in common: the story, its end, and the verdict.

`nodes_history` has nodes with disks of their own, whose leaders stay; `cluster_history` has nodes
over one database, whose leaders move. Each says which machines there are, what happens to them, and
how clients reach them.
"""

from __future__ import annotations

import asyncio
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Protocol

from coordinator.groups.offsets.committed import OffsetKey
from coordinator.transactions.metadata import TopicPartition
from magnetar.broker import Broker
from magnetar.runtime.commit import VISIBLE_TIMEOUT_MS
from tests.simulation.checker import judge
from tests.simulation.clients.connection import Connection
from tests.simulation.clients.idempotent_producer import IdempotentProducer
from tests.simulation.clients.reader import Reader
from tests.simulation.clients.topics import create_topics
from tests.simulation.ending import (
    all_partitions,
    committed_values,
    extent_of,
    name_of_last_reader,
    read_all,
)
from tests.simulation.families import Parent
from tests.simulation.history import Outcome, check_nodes
from tests.simulation.observations import Observations
from tests.simulation.planted_faults import check_plant, planted
from tests.simulation.whole_history import Client, Verdict
from tests.simulation.workers import AGAIN, TARGETS, TIMEOUT_MS, Reached, Worker
from tests.simulation.world.entropy import seeded_entropy
from tests.simulation.world.log_lines import LogLines, recorded_logs
from tests.simulation.world.machine import HEALING_INTERVAL_MS
from tests.simulation.world.network import Network
from tests.simulation.world.pace import simulated_pace
from tests.simulation.world.process import Process, Scheduler
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
    "joint.vote.timeout.ms": "3000",
}
#: How many workers have children, who vote in their transactions.
_PARENTS = 0.3
#: How often a supervisor looks whether its node still runs.
_SUPERVISED_S = 0.5
#: What a client is told while another node does not answer, or this one knows less than another.
NODES_AGAIN = AGAIN | {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class NodeMachine(Protocol):
    """The machine of one node, as far as a story goes."""

    broker: Broker | None
    failures: list[BaseException]
    incarnations: int

    @property
    def is_up(self) -> bool: ...


class NodeNemesis(Protocol):
    """What happens to one node."""

    random: Random

    async def rage(self, seconds: float) -> None: ...
    async def revive(self) -> None: ...
    async def restart(self) -> None: ...


class SeveralNodes(ABC):
    """The parts of one history."""

    #: Set by who knows what kind of nodes there are.
    machines: Mapping[int, NodeMachine]
    nemeses: Sequence[NodeNemesis]
    topics = TOPICS
    #: Topics whose records may go by themselves, as `judge` takes them.
    kept: ClassVar[dict[str, str]] = {}
    #: Whether requests of workers have partitions of several leaders.
    is_spreading = False
    #: What makes a worker try again.
    again = NODES_AGAIN
    #: What is waited for at the end, besides a round of healing.
    rest_s: float

    def __init__(self, seed: int, rage_s: float) -> None:
        self.seed = seed
        self.rage_s = rage_s
        self.observations = Observations()
        self.scheduler = Scheduler(self.random_of("scheduler"))
        self.network = Network(self.random_of("network"))
        self.process = Process(self.scheduler, self.random_of("clients"))
        self.log = LogLines()
        self._connections: list[Connection] = []

    def random_of(self, concern: str) -> Random:
        """Return the chance of one concern, so that one does not disturb another."""
        return Random(f"{self.seed} {concern}")

    @property
    def incarnations(self) -> int:
        """How many brokers there were, of all nodes."""
        return sum(machine.incarnations for machine in self.machines.values())

    # --- what kinds of nodes differ in

    def prepare(self) -> None:  # noqa: B027  # not every kind of nodes needs it
        """Do what comes before the first start."""

    @abstractmethod
    def address_of(self, node_id: int) -> str:
        """Return where clients reach a node."""

    @abstractmethod
    def producer(self, name: str, partition: TopicPartition) -> IdempotentProducer:
        """Return a producer of one partition, which reaches its leader."""

    @abstractmethod
    def readers(
        self, name: str, partitions: list[TopicPartition], *, is_committed: bool
    ) -> list[Reader]:
        """Return readers that have these partitions between them, and reach their leaders."""

    @abstractmethod
    def reached(self, name: str) -> Reached:
        """Return a worker's way to the nodes."""

    @abstractmethod
    def brokers(self) -> list[Broker]:
        """Return the brokers whose state is checked at the end."""

    def calmed(self) -> None:  # noqa: B027  # not every kind of nodes needs it
        """Let nothing more go wrong in what the nodes share."""

    def astray(self) -> list[str]:
        """Return what is wrong at the end in what the nodes share."""
        return []

    # --- clients

    def connect(self, name: str, node_id: int, *, may_arrive_late: bool = True) -> Connection:
        """Return a connection of a client to one node."""
        made = Connection(
            self.network,
            self.process,
            name,
            may_arrive_late=may_arrive_late,
            address=self.address_of(node_id),
        )
        self._connections.append(made)
        return made

    def connect_all(self, name: str, *, may_arrive_late: bool = True) -> dict[int, Connection]:
        """Return a connection of a client to each node."""
        return {
            node_id: self.connect(name, node_id, may_arrive_late=may_arrive_late)
            for node_id in self.machines
        }

    def clients(self) -> list[Client]:
        """Return the clients of this history, of every kind."""
        random = self.random_of("kinds")
        written = [TopicPartition("plain", index) for index in range(3)]
        made: list[Client] = [
            self._worker(f"worker{index}", random) for index in range(random.randint(2, 4))
        ]
        for index in range(random.randint(1, 2)):
            made.append(self.producer(f"producer{index}", random.choice(written)))
        for is_committed in (False, True):
            name = f"reader{'-committed' if is_committed else ''}"
            made += self.readers(name, [*written, *TARGETS], is_committed=is_committed)
        return made

    def _worker(self, name: str, random: Random) -> Worker:
        number = random.randrange(3)
        # All of an id, or none: a worker that heeds no votes would commit those of its rivals.
        kind = Parent if self.random_of(f"kind of tx{number}").random() < _PARENTS else Worker
        return kind(
            self.reached(name),
            self.observations.history,
            self.random_of(name),
            name,
            f"tx{number}",
            OffsetKey(f"g{number}", "in", number),
            is_v2=random.random() < 0.5,
            again=self.again,
            again_of_nodes=self.again,
            is_spreading=self.is_spreading,
        )

    # --- the story

    async def story(self) -> None:
        """Begin, go wrong, calm down, and read everything."""
        self.prepare()
        await self._all(nemesis.revive() for nemesis in self.nemeses)
        await create_topics(self.connect("setup", 0), self.topics)
        await self._until_known()
        clients = self.clients()
        tasks = [asyncio.ensure_future(client.run()) for client in clients]
        await self._all(nemesis.rage(self.rage_s) for nemesis in self.nemeses)
        self.calmed()
        for client in clients:
            client.is_ending = True
        await self._supervised(asyncio.wait(tasks))
        for task in tasks:
            task.result()
        # The last timeout, the last delayed request and its own; calls to peers that hang; a sweep.
        calm_s = (2 * TIMEOUT_MS + 2 * HEALING_INTERVAL_MS) / 1000 + 14
        await self._supervised(asyncio.sleep(calm_s))
        for nemesis in self.nemeses:
            if nemesis.random.random() < 0.3:
                await nemesis.restart()
        await asyncio.sleep(HEALING_INTERVAL_MS / 1000 + self.rest_s)
        for is_committed in (False, True):
            await self._read_all(is_committed)

    async def _until_known(self) -> None:
        """Return when every node knows every topic."""
        while not all(
            machine.broker is not None
            and machine.is_up
            and all(machine.broker.topics.by_name(name) for name in self.topics)
            for machine in self.machines.values()
        ):
            await asyncio.sleep(0.1)

    async def _supervised(self, work: Awaitable[object]) -> None:
        """Return when `work` is done. A node that ends meanwhile, by what went wrong before, is
        started again.
        """
        working = asyncio.ensure_future(work)
        while not working.done():
            await self._all(nemesis.revive() for nemesis in self.nemeses)
            await asyncio.sleep(_SUPERVISED_S)
        await working

    async def _all(self, works: Iterator[Any]) -> None:
        await asyncio.gather(*works)

    async def _read_all(self, is_committed: bool) -> None:
        counts = {name: count for name, (count, _) in self.topics.items()}
        name = name_of_last_reader(is_committed=is_committed)
        readers = self.readers(name, all_partitions(counts), is_committed=is_committed)
        await read_all(readers, counts, self.observations, is_committed=is_committed)

    # --- the verdict

    def verdict(self) -> Verdict:
        """Return what came of it."""
        observations = self.observations
        committed = committed_values(observations)
        witnesses = [
            *self.astray(),
            *judge(observations, self.kept),
            *invisible(observations),
            *(check_nodes(observations.history, self.brokers(), committed) if committed else ()),
            *(found for each in self._connections for found in each.witnesses),
            *(
                f"failed: node {node_id}: {failure!r}"
                for node_id, machine in self.machines.items()
                for failure in machine.failures
            ),
        ]
        extent = extent_of(observations, self.incarnations)
        return Verdict(self.seed, witnesses, self.network.trace_hash, extent)

    def told(self, plant: str) -> Verdict:
        """Let the history happen, with the fault of that name planted; return what came of it."""
        entropy = seeded_entropy(self.random_of("entropy"))
        with recorded_logs(self.log), planted(plant), entropy, simulated_pace():
            try:
                self.scheduler.run(self.process, self.story())
            except Exception:
                self.observations.witnesses.append(f"stuck: {traceback.format_exc()}")
            if plant:
                failed = [one for each in self.machines.values() for one in each.failures]
                check_plant((*failed, *self.log.errors()))
            verdict = self.verdict()
            self.scheduler.end()
        self.scheduler.graveyard.append(self)
        return verdict


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
