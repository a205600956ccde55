"""The machine of one node of a cluster: clocks, an address, and one process after another.

It has no disk: what a node must not lose is in the storage that all of them share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from coordinator.transactions.commit_plan import MarkerWork
from coordinator.transactions.metadata import TopicPartition
from logstore.disk.durability import Durability
from logstore.partition.log_config import LogConfig
from logstore.remote.commit_sizes import taking_turns
from logstore.remote.commit_store import NodeFenced
from logstore.remote.memory_tail import MemoryTail
from magnetar.broker import Broker
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.load import Given, load
from magnetar.config.topic import TopicConfig
from magnetar.runtime.cluster_members import ClusterMembers, Joining
from magnetar.runtime.markers_elsewhere import Round
from magnetar.runtime.turns import Turns
from magnetar.storage.catalog import Catalog
from magnetar.storage.leadership import Move
from magnetar.storage.logs import Logs
from magnetar.storage.remote_logs import RemoteLogs
from tests.logstore.remote.simulated_store import SimulatedStore
from tests.simulation.world.clock import ProcessClock, WallClock
from tests.simulation.world.machine import SETTINGS, BrokerProcess
from tests.simulation.world.network import ListeningSocket, Network
from tests.simulation.world.peer_links import PeerLinks
from tests.simulation.world.process import ProcessEnded, Scheduler
from tests.simulation.world.shared_bucket import OBJECT_BYTES, PACE, REFERENCE_BYTES
from tests.simulation.world.shared_storage import SharedStorage
from tests.simulation.world.storage import (
    SEGMENT_BYTES,
    SNAPSHOT_INTERVAL_BYTES,
    ProcessExecutor,
)

#: What a node keeps of its logs in memory: so little that some reads are cold.
_TAIL_BYTES = 4_000


class ClusterMachine:
    """What outlives a node's process."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        random: Random,
        node_id: int,
        storage: SharedStorage,
        settings: dict[str, str],
    ) -> None:
        self.node_id = node_id
        self.random = random
        self.wall = WallClock(scheduler)
        self.incarnations = 0
        #: Why processes have ended that nothing had been done to.
        self.failures: list[BaseException] = []
        #: How often a process has ended because others had taken over.
        self.fenced = 0
        self.mishap_probability = random.choice((0.0, 0.01, 0.05))
        #: Told what a coordinator here has decided, and is to bring to other nodes.
        self.on_decided: Callable[[Sequence[MarkerWork]], None] = lambda owed: None
        self._scheduler = scheduler
        self._network = network
        self._storage = storage
        self._settings = settings
        self.process: BrokerProcess | None = None
        self.broker: Broker | None = None
        self.store: SimulatedStore | None = None
        self.is_up = False

    @property
    def address(self) -> str:
        """Where clients reach the node."""
        return f"node {self.node_id}"

    @property
    def is_alive(self) -> bool:
        """Whether a process runs, ready or not."""
        return self.process is not None and self.process.is_alive

    def start(self) -> None:
        """Start the next process; `is_up` when clients can connect."""
        assert not self.is_alive
        self.incarnations += 1
        process = BrokerProcess(self._scheduler, self.random, self._network)
        self.process, self.is_up = process, False
        own = {"durability": Durability.FSYNC.value, "node.id": str(self.node_id)}
        values = SETTINGS | self._settings | own
        config = load([Given(name, value, "test") for name, value in values.items()]).config
        members = ClusterMembers()

        async def serve() -> None:
            broker = Broker(
                config,
                clock=ProcessClock(self._scheduler, self.wall),
                on_failure=partial(self._fail, process),
                open_storage=partial(self._open, process),
                bind=lambda _: ListeningSocket(self.address),
                peer_network=PeerLinks(self._network, process, self.node_id),
                joining=Joining(members, ("peers", 1), self.address, self._storage.catalog),
            )
            # Else the turns of a history would take as long as this machine is slow.
            broker.turns = Turns(asyncio.get_running_loop().time)
            self.broker = broker
            await self._carry(process, broker.start())
            self._watch_decisions(broker)
            self.is_up = True

        process.spawn(serve())

    def _watch_decisions(self, broker: Broker) -> None:
        assert broker.among_peers is not None
        markers: Any = broker.among_peers.markers
        ask = markers.ask

        def ask_and_tell(current: Round, on_over: Callable[[], object]) -> None:
            self.on_decided([work for _, work, _ in current.asked])
            ask(current, on_over)

        markers.ask = ask_and_tell

    def hand_over(self, partition: TopicPartition, node_id: int) -> None:
        """Let another node lead a partition, as if an administrator had assigned it there."""
        process, broker = self.process, self.broker
        if process is None or broker is None or not self.is_up or broker.is_stopped:
            return
        topic, cluster = broker.topics.by_name(partition.topic), broker._cluster
        assert topic is not None and cluster is not None and cluster._leader_changes is not None
        moves = [Move(topic.id, partition.partition, node_id)]
        perform = partial(cluster._leader_changes._perform, moves)

        async def begin() -> None:
            # A stop, which may come first, cancels what the node does by itself.
            if cluster._tasks is not None and not broker.is_stopped:
                cluster._tasks.spawn(cluster._change_leaders(perform))

        process.spawn(begin())

    async def _carry(self, process: BrokerProcess, work: Coroutine[Any, Any, object]) -> None:
        """Await a part of the broker: whatever it raises is a failure of the process."""
        try:
            await work
        except Exception as error:  # Also a broken invariant is to end up among the failures.
            self._fail(process, error)

    def _open(
        self,
        process: BrokerProcess,
        config: BrokerConfig,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> tuple[Logs, Catalog]:
        store = self._storage.store(self.random, self.mishap_probability)
        self.store = store
        executor = ProcessExecutor(process, self.random)
        logs = _SmallLogs(
            store,
            config,
            clock,
            fail,
            executor=executor,
            now_ms=self._storage.now_ms,
            objects=self._storage.bucket,
        )
        if self._storage.turn_bytes is not None:
            logs.take_turns(*self._storage.turn_bytes)
        return logs, self._storage.catalog()

    def _fail(self, process: BrokerProcess, failure: BaseException) -> None:
        """As `os._exit`: the process ends in this step."""
        if process.is_alive:
            if isinstance(failure, NodeFenced):
                self.fenced += 1
            else:
                self.failures.append(failure)
        self._ended(process)
        raise ProcessEnded

    def _ended(self, process: BrokerProcess) -> None:
        if process.is_alive:
            self.is_up = False
            self._scheduler.graveyard.append(self.broker)
            process.end()
            self._network.end_process(process, is_told=self.random.random() < 0.7)

    def kill(self) -> None:
        """End the process at once."""
        if self.process is not None:
            self._ended(self.process)

    def stop(self) -> asyncio.Task[None]:
        """Stop the node as a signal does: it hands over what it leads, and then ends."""
        process, broker = self.process, self.broker
        assert process is not None and broker is not None

        async def stop() -> None:
            await self._carry(process, broker.stop())
            self._ended(process)

        return process.spawn(stop())


class _SmallLogs(RemoteLogs):
    """Logs whose segments are small, so that they roll, and of which little stays in memory.

    A bucket gets small objects, and is swept often.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._remote._tail = MemoryTail(_TAIL_BYTES)

    def take_turns(self, large_bytes: int, commit_bytes: int) -> None:
        """Let logs that have so much to write take turns, which have so much room."""
        self._group_commit._choose = partial(
            taking_turns, large_bytes=large_bytes, commit_bytes=commit_bytes
        )

    def begin_as(self, node_id: int, incarnation: int) -> None:
        super().begin_as(node_id, incarnation)
        if self.bulk is not None:
            self.bulk = self.bulk._replace(pace=PACE)
            offload = self.bulk.offload
            offload.object_bytes, offload.reference_bytes = OBJECT_BYTES, REFERENCE_BYTES

    def settings(self, topic: str, config: TopicConfig) -> LogConfig:
        return replace(
            super().settings(topic, config),
            segment_bytes=SEGMENT_BYTES,
            snapshot_interval_bytes=SNAPSHOT_INTERVAL_BYTES,
        )
