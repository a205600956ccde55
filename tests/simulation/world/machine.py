"""The machine of a broker: its disk, its clocks, its address, and one broker process after another.

Real: everything of the broker, from the bytes of a connection to the bytes of a file. Simulated:
the disk, threads, timers, clocks, random bytes, the network. See `docs/testing.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from logstore.disk.durability import Durability
from magnetar.broker import Broker
from magnetar.config.listeners import parse_listeners
from magnetar.config.load import Given, load
from magnetar.runtime.turns import Turns
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk
from tests.simulation.world.clock import ProcessClock, WallClock
from tests.simulation.world.network import BROKER, ListeningSocket, Network
from tests.simulation.world.peer_links import PeerLinks
from tests.simulation.world.process import Process, ProcessEnded, Scheduler
from tests.simulation.world.storage import (
    ProcessExecutor,
    StoredCatalog,
    open_shared,
    open_simulated,
)

HEALING_INTERVAL_MS = 500
SETTINGS = {
    "listeners": "PLAINTEXT://broker.simulated:9092",
    "log.dirs": "/data",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.healing.interval.ms": str(HEALING_INTERVAL_MS),
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "300",
    "log.segment.delete.delay.ms": "1500",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "auto.create.topics.enable": "false",
    # Clocks are set while requests wait.
    "log.message.timestamp.after.max.ms": str(2**62),
}


class BrokerProcess(Process):
    """A process that listens on the simulated network."""

    def __init__(self, scheduler: Scheduler, random: Random, network: Network) -> None:
        super().__init__(scheduler, random)
        self._network = network

    async def create_server(  # type: ignore[override]  # the one form that the broker uses
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *,
        sock: ListeningSocket,
        **_: Any,
    ) -> _Listening:
        self._network.listen(self, protocol_factory, sock.address)
        return _Listening(self._network, sock.address)


class _Listening:
    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address

    def close(self) -> None:
        self._network.refuse(self._address)


class Node(NamedTuple):
    """Which of several nodes a machine is, and the catalog that they share."""

    id: int
    ids: Sequence[int]
    stored: StoredCatalog

    @property
    def address(self) -> str:
        """Where its clients reach it."""
        return f"node {self.id}"


class Machine:
    """What outlives a broker process."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        random: Random,
        durability: Durability = Durability.FSYNC,
        settings: dict[str, str] | None = None,
        node: Node | None = None,
    ) -> None:
        """`node`: None for a broker that is alone."""
        self.node = node
        self.random = random
        self.durability = durability
        self.wall = WallClock(scheduler)
        self.disk = SimulatedDisk(seed=random.getrandbits(32), can_sync_all=random.random() < 0.65)
        self.stored = StoredCatalog()
        self.incarnations = 0
        #: Why brokers have ended that nothing had been done to.
        self.failures: list[BaseException] = []
        self._scheduler = scheduler
        self._network = network
        self._settings = settings or {}
        self.process: BrokerProcess | None = None
        self.broker: Broker | None = None
        self.is_up = False
        #: Whether the last process ended with the power, in an operation of its disk.
        self.has_lost_power = False

    def start(self) -> None:
        """Start the next broker process; `is_up` when clients can connect."""
        assert self.process is None or not self.process.is_alive
        self.incarnations += 1
        process = BrokerProcess(self._scheduler, self.random, self._network)
        self.process = process
        self.is_up = self.has_lost_power = False
        self.disk.on_power_lost = partial(self._power_lost, process)
        values = SETTINGS | self._settings | {"durability": self.durability.value}
        if self.node is not None:
            values["node.id"] = str(self.node.id)
        config = load([Given(name, value, "test") for name, value in values.items()]).config
        clock = ProcessClock(self._scheduler, self.wall)
        executor = ProcessExecutor(process, self.random)
        node, address, members, peers = self.node, BROKER, None, None
        stored, opening = self.stored, open_simulated
        if node is not None:
            stored, opening = node.stored, open_shared
            address = node.address
            members = dict.fromkeys(node.ids, parse_listeners(config))
            peers = PeerLinks(self._network, process, node.id)
        storage = partial(opening, disk=self.disk, stored=stored, executor=executor)

        async def serve() -> None:
            broker = Broker(
                config,
                clock=clock,
                on_failure=partial(self._fail, process),
                open_storage=storage,
                bind=lambda _: ListeningSocket(address),
                members=members,
                peer_network=peers,
            )
            # Else the turns of a history would take as long as this machine is slow.
            broker.turns = Turns(asyncio.get_running_loop().time)
            self.broker = broker
            try:
                await broker.start()
            except PowerLost:
                return
            except Exception as error:
                self._fail(process, error)
            self.is_up = True

        process.spawn(serve())

    def _fail(self, process: BrokerProcess, failure: BaseException) -> None:
        """As `os._exit`: the process ends in this step."""
        if process.is_alive and not isinstance(failure, PowerLost):
            self.failures.append(failure)
            # What the rest of this step writes is of a process that is no more.
            self.disk.lose_power_after(0)
        self._ended(process)
        raise ProcessEnded

    def _power_lost(self, process: BrokerProcess) -> None:
        if process.is_alive:
            self.has_lost_power = True
        self._ended(process)

    def _ended(self, process: BrokerProcess) -> None:
        if not process.is_alive:
            return
        self.is_up = False
        self._scheduler.graveyard.append(self.broker)
        process.end()
        self._network.end_process(process, is_told=self.random.random() < 0.7)

    @property
    def is_alive(self) -> bool:
        """Whether a broker process runs, ready or not."""
        return self.process is not None and self.process.is_alive

    def kill(self) -> None:
        """End the process; what it wrote is seen by the next, synced or not."""
        if self.process is not None:
            self._ended(self.process)
        self._take(self.disk.kill(self.random))

    def lose_power(self) -> None:
        """End the process, and keep of what was not synced what chance keeps."""
        if self.process is not None:
            self._ended(self.process)
        self._take(self.disk.crash(self.random))

    def stop(self) -> asyncio.Task[None]:
        """Stop the broker as a signal does; the process ends when all is durable."""
        process, broker = self.process, self.broker
        assert process is not None and broker is not None

        async def stop() -> None:
            try:
                await broker.stop()
            except PowerLost:
                raise
            except Exception as error:
                self._fail(process, error)
            self._ended(process)

        return process.spawn(stop())

    def next_disk(self) -> None:
        """After a clean stop the next process finds the disk as it is."""
        self._take(self.disk.kill(self.random))

    def _take(self, disk: SimulatedDisk) -> None:
        """Go on with what is left of the disk, which is as full as it was."""
        disk.space_left = self.disk.space_left
        self.disk = disk
