"""One history of a cluster whose partitions move: take-overs, hand-overs, zombies, and a verdict.

The nodes have no disks. The catalog and the logs are in one simulated database, on the way to which
commits are lost, late, and of unknown outcome, and which fails over to a standby. Nodes are killed,
stay away for longer than their leases, are stopped for longer than that and wake, hand over what
they lead at their end, and get their share when they are back. Some partitions move to the very
node that has just decided a transaction of theirs, before they have its markers; some while their
batches move to the bucket, which a part of the clusters has. Some fail-overs come between a commit
and one of another node that rests on it, and the first of these nodes dies. The clients are those
of histories of several nodes, and look for the leaders in the catalog. Some of their requests have
several partitions, whose leaders differ and whose logs take turns.

    python -m tests.simulation.run --cluster --seeds 0-999
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar

from coordinator.transactions.commit_plan import MarkerWork
from coordinator.transactions.metadata import TopicPartition
from logstore.remote.commit_store import Basis
from magnetar.broker import Broker
from tests.simulation.clients.idempotent_producer import IdempotentProducer
from tests.simulation.clients.reader import Reader
from tests.simulation.clients.routed import CatalogRoutes, ReachedCluster, RoutedConnection
from tests.simulation.clients.spread_producer import SpreadProducer
from tests.simulation.several_nodes import INTERNAL, NODES_AGAIN, TOPICS, SeveralNodes
from tests.simulation.whole_history import Client, Verdict
from tests.simulation.world.cluster_machine import ClusterMachine
from tests.simulation.world.network import Network
from tests.simulation.world.process import ProcessEnded
from tests.simulation.world.shared_bucket import AGE_MS
from tests.simulation.world.shared_storage import SharedStorage
from wire.error_code import ErrorCode

RAGE_S = 20.0
#: How often what a decision is owed goes to the node that has decided, before it gets its markers.
_FOLLOWED_PROBABILITY = 0.2
#: How often a commit loses what it rests on, with the node that would write that again.
_BASIS_LOST_PROBABILITY = 0.25
#: How often a partition is handed over while its batches move to an object, and how long after the
#: write of the object has begun.
_MOVED_PROBABILITY = 0.2
_ON_WAY_S = (0.0, 0.01, 0.1)
#: Topics whose records go, from objects too: what compaction removes, and what is too much.
_FADING: dict[str, tuple[int, dict[str, str]]] = {
    "compact": (
        1,
        {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "1000",
        },
    ),
    "short": (1, {"retention.bytes": "6000"}),
}
#: How often the bucket is looked at for what the database names.
_LOOK_S = 1.0
#: How many such looks are granted to the last sweeps.
_LOOKS_AT_END = 60
#: Longer than a lease, and than the second that a node takes to look.
_AWAY_S = 9.0


@dataclass
class ClusterNemesis:
    """What happens to one node."""

    machine: ClusterMachine
    network: Network
    storage: SharedStorage
    random: Random
    is_raging: bool = False

    async def rage(self, seconds: float) -> None:
        """Disturb for that long; at the end the node is up."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        self.is_raging = self.storage.is_raging = True
        while loop.time() < end_s:
            await asyncio.sleep(self.random.choice((0.1, 0.5, 1.0, 3.0)))
            await self.revive()
            await self._strike()
        self.is_raging = False
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
            # After the longest it finds itself fenced, with requests and commits of before.
            machine.process.stop_for(self.random.choice((0.2, 1.0, 5.2, _AWAY_S, _AWAY_S)))
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
        if self.machine.store is not None and self.random.random() < 0.5:
            # What it hands over has commits under way.
            self.machine.store.slow_s = 0.3
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


class _Cluster(SeveralNodes):
    """The parts of one history."""

    # A restart, then two sweeps: each begins 4 s after the end of the one before.
    rest_s = 16
    is_spreading = True
    topics = TOPICS | _FADING
    kept: ClassVar[dict[str, str]] = {"compact": "compact", "short": "retained"}
    #: And while a coordinator moves.
    again = NODES_AGAIN | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}

    def __init__(self, seed: int, rage_s: float) -> None:
        super().__init__(seed, rage_s)
        self.storage = SharedStorage(self.scheduler, self.random_of("storage"))
        ids = range(self.random_of("nodes").choice((2, 3, 3, 4)))
        self.machines: dict[int, ClusterMachine] = {
            node_id: ClusterMachine(
                self.scheduler,
                self.network,
                self.random_of(f"machine {node_id}"),
                node_id,
                self.storage,
                INTERNAL | {"cluster.objects.after.ms": str(AGE_MS)},
            )
            for node_id in ids
        }
        nemeses = {
            each: ClusterNemesis(
                machine, self.network, self.storage, self.random_of(f"nemesis {each}")
            )
            for each, machine in self.machines.items()
        }
        self.nemeses = [*nemeses.values()]
        self.routes = CatalogRoutes(self.storage.read, self.storage.state)
        random = self.random_of("decided")
        for node_id, machine in self.machines.items():
            machine.on_decided = partial(self._decided, random, node_id)
        if self.storage.bucket is not None:
            self.storage.bucket.on_put = partial(self._moving, self.random_of("moving"))
        self.storage.logs.on_basis = partial(self._rested_on, self.random_of("rested on"), nemeses)

    def calmed(self) -> None:
        self.storage.is_raging = False
        if self.storage.bucket is not None:
            self.storage.bucket.is_calm = True

    async def story(self) -> None:
        telling = asyncio.ensure_future(super().story())
        while not telling.done():
            await asyncio.sleep(_LOOK_S)
            if self._missing():
                # Clients would ask for it for ever.
                return
        telling.result()
        # The last compaction may have been late: the database was away. Two sweeps come after it.
        for _ in range(_LOOKS_AT_END):
            if self.astray():
                await asyncio.sleep(_LOOK_S)

    def astray(self) -> list[str]:
        bucket = self.storage.bucket
        return [] if bucket is None else bucket.left_behind(self.storage.logs.references())

    def verdict(self) -> Verdict:
        # Without it the story has not come to its end, so no other rule holds.
        missing = self._missing()
        verdict = super().verdict()
        return verdict._replace(witnesses=missing) if missing else verdict

    def _missing(self) -> list[str]:
        bucket = self.storage.bucket
        return [] if bucket is None else bucket.missing(self.storage.logs.references())

    def _decided(self, random: Random, node_id: int, owed: Sequence[MarkerWork]) -> None:
        """Move a partition to the node that has just decided a transaction of it, now and then."""
        if random.random() < _FOLLOWED_PROBABILITY:
            partition = random.choice([*owed[0].partitions])
            leader = self.routes.leader(*partition)
            if leader is not None and leader != node_id:
                self.machines[leader].hand_over(partition, node_id)

    def _moving(self, random: Random, object_key: str) -> None:
        """Hand a partition over while its batches move to an object, now and then."""
        if random.random() < _MOVED_PROBABILITY:
            _, topic_id, index, _ = object_key.split("/")
            names = {str(row.id): row.name for row in self.storage.read().topics()}
            partition = TopicPartition(names[topic_id], int(index))
            leader = self.routes.leader(*partition)
            if leader is not None:
                hand_over = partial(
                    self.machines[leader].hand_over,
                    partition,
                    random.choice([one for one in self.machines if one != leader]),
                )
                asyncio.get_running_loop().call_later(random.choice(_ON_WAY_S), hand_over)

    def _rested_on(self, random: Random, nemeses: dict[int, ClusterNemesis], basis: Basis) -> None:
        """Fail over between a commit and one of another node that rests on it, now and then."""
        nemesis = nemeses[basis.node_id]
        if nemesis.is_raging and random.random() < _BASIS_LOST_PROBABILITY:
            self.storage.logs.fail_over()
            nemesis.machine.kill()

    def address_of(self, node_id: int) -> str:
        return self.machines[node_id].address

    def producer(self, name: str, partition: TopicPartition) -> IdempotentProducer:
        return IdempotentProducer(
            name,
            self._routed(name, partition),
            partition,
            self.observations,
            self.random_of(name),
            has_tombstones=partition.topic == "compact",
            may_begin_late=True,
        )

    def clients(self) -> list[Client]:
        partitions = [TopicPartition("plain", index) for index in range(3)]
        ways = {partition: self._routed("spread", partition) for partition in partitions}
        spread = SpreadProducer("spread", ways, self.observations, self.random_of("spread"))
        made = [*super().clients(), spread]
        fading = [TopicPartition(topic, 0) for topic in _FADING]
        made += [self.producer(f"{one.topic} producer", one) for one in fading]
        for is_committed in (False, True):
            name = f"fading{'-committed' if is_committed else ''}"
            made += self.readers(name, fading, is_committed=is_committed)
        return made

    def readers(
        self, name: str, partitions: list[TopicPartition], *, is_committed: bool
    ) -> list[Reader]:
        """Return one reader for each partition, which follows its leaders."""
        return [
            Reader(
                name,
                self._routed(f"{name} of {partition}", partition),
                [partition],
                self.observations,
                self.random_of(f"{name} {partition}"),
                is_committed=is_committed,
            )
            for partition in partitions
        ]

    def _routed(self, name: str, partition: TopicPartition) -> Any:
        return RoutedConnection(self.routes, self.connect_all(name), partition)

    def reached(self, name: str) -> ReachedCluster:
        return ReachedCluster(
            self.routes,
            self.connect_all(name, may_arrive_late=False),
            lambda: self.incarnations,
            self.machines[0].wall.now_ms,
        )

    def brokers(self) -> list[Broker]:
        return [
            machine.broker
            for machine in self.machines.values()
            if machine.broker is not None and machine.is_up
        ]


def tell(seed: int, plant: str = "", *, rage_s: float = RAGE_S) -> Verdict:
    """Return what came of the history of this seed, with the fault of that name planted."""
    return _Cluster(seed, rage_s).told(plant)


def warm_up() -> None:
    """Import and compile what histories need, so that processes can be copied from this one."""
    tell(0, rage_s=0.1)
