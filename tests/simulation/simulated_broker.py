"""The whole broker but its sockets, on a disk that loses power; one incarnation after another.

Real: the composition, catalog, topics, request handlers, both coordinators, participants, healing,
the logs. Simulated: the disk, the thread that syncs, and time. The catalog (SQLite) is taken at its
word: what it has committed survives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from logstore.directory.log_directory import LogDirectory
from logstore.disk.durability import Durability
from logstore.disk.room import Room
from logstore.partition.log_config import LogConfig
from logstore.sync.group_commit import GroupCommit
from magnetar.apis.registry import load_apis
from magnetar.broker import Broker
from magnetar.config.listeners import Listener
from magnetar.config.load import Given, load
from magnetar.config.topic import TopicConfig
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.turns import Turns
from magnetar.security.session import Session
from magnetar.storage.catalog import Catalog
from magnetar.storage.logs import Logs
from magnetar.storage.topic_names import INTERNAL
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk
from tests.logstore.simulated_executors import SimulatedExecutor
from tests.magnetar.ending import when_made
from tests.simulation.simulated_loop import LoopClock, SimulatedLoop
from wire.errors import KafkaError
from wire.message import Message

M = TypeVar("M", bound=Message)

TOPICS = {"a": 2, "b": 2, "in": 4}
HEALING_INTERVAL_MS = 500
_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.healing.interval.ms": str(HEALING_INTERVAL_MS),
    "joint.vote.timeout.ms": "3000",
    "joint.child.expiration.ms": "4000",
}


class Gone(Exception):
    """No answer came: the broker died, or the answer was lost. The outcome is unknown."""


async def at_once(work: Callable[[], None]) -> None:
    """Syncs of many logs together: there are no threads here."""
    work()


class LoopExecutor(SimulatedExecutor):
    """Syncs take some time, and the process that asked may be dead by then."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._is_closed = False

    def call_soon(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self._run, callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, self._run, callback)

    def close(self) -> None:
        self._is_closed = True

    def _later(self, callback: Callable[[], None]) -> None:
        delay_s = self._random.choice((0.0001, 0.0005, 0.002, 0.01))
        asyncio.get_running_loop().call_later(delay_s, self._run, callback)

    def _run(self, callback: Callable[[], None]) -> None:
        if not self._is_closed:
            with suppress(PowerLost):
                callback()


class SimulatedLogs(Logs):
    """`Logs` on the simulated disk; segments are small, so that they roll."""

    def __init__(self, world: World, broker: Broker, executor: LoopExecutor) -> None:
        group_commit = GroupCommit(
            world.disk,
            world.durability,
            on_failure=world.on_failure,
            executor=executor,
            sync_all_from=world.random.choice((1, 2, 1000)),
        )
        directory = LogDirectory(
            "/data",
            world.disk,
            group_commit,
            LogConfig(),
            steady_ms=broker.clock.steady_ms,
            aside=at_once,
        )
        room = Room(world.disk.free_bytes, 0, lambda is_full, free_bytes: None)
        super().__init__(broker.config, group_commit, directory, room, on_disk=directory)

    def settings(self, topic: str, config: TopicConfig) -> LogConfig:
        settings = super().settings(topic, config)
        return replace(settings, segment_bytes=3000, snapshot_interval_bytes=1000)

    def abandon(self) -> None:
        self._group_commit.close()
        self._directory.abandon()


@dataclass
class World:
    """What outlives the broker: its disk, its catalog, its clients, time."""

    loop: SimulatedLoop
    random: Random
    durability: Durability = Durability.FSYNC
    #: Without it there is no journal.
    can_sync_all: bool = True
    settings: dict[str, str] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)
    incarnations: int = 0
    #: Open transactions that the sweep adopted, committed, aborted, over all incarnations.
    healed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seed = self.random.getrandbits(32)
        self.disk = SimulatedDisk(seed=seed, can_sync_all=self.can_sync_all)
        self.catalog = Catalog(None)
        self.apis = load_apis()
        self.is_dark = asyncio.Event()
        self.is_up = asyncio.Event()
        self._requests: set[asyncio.Task[Any]] = set()
        self._ours: set[asyncio.Task[Any]] = set()
        self.loop.set_exception_handler(self._on_loop_exception)

    # The life of a broker.

    async def start(self) -> None:
        """Start the next incarnation; PowerLost if power goes meanwhile."""
        self.incarnations += 1
        values = _SETTINGS | self.settings | {"durability": self.durability.value}
        config = load([Given(name, value, "test") for name, value in values.items()]).config
        broker = Broker(config, clock=LoopClock(self.loop), on_failure=self.on_failure)
        # Or a busy machine would change the order of a story.
        broker.turns = Turns(self.loop.time)
        self.broker = broker
        self.disk.on_power_lost = self.is_dark.set
        self.executor = LoopExecutor(self.random)
        self.logs = SimulatedLogs(self, broker, self.executor)
        await broker.use_storage(self.logs, self.catalog)
        await self._unless_dark(broker._recover())
        for name, count in TOPICS.items():
            if broker.topics.by_name(name) is None:
                broker.topics.create(name, count)
        for name in INTERNAL:
            broker.topics.ensure_internal(name)
        if self.is_dark.is_set():
            raise PowerLost
        self.is_up.set()

    async def _unless_dark(self, recovery: Coroutine[Any, Any, None]) -> None:
        """Recover; PowerLost if power goes meanwhile: what recovery waits for never comes then."""
        recovering, dark = asyncio.create_task(recovery), asyncio.create_task(self.is_dark.wait())
        await asyncio.wait((recovering, dark), return_when=asyncio.FIRST_COMPLETED)
        dark.cancel()
        if not recovering.done():
            recovering.cancel()
            await asyncio.wait((recovering,))
            raise PowerLost
        recovering.result()

    def mine(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """A task that is no part of the broker, so survives it."""
        self._ours.add(task)
        task.add_done_callback(self._ours.discard)
        return task

    async def end_process(self) -> None:
        """Everything of the broker stops where it is."""
        self.is_up.clear()
        self.executor.close()
        current = asyncio.current_task()
        broker_tasks = asyncio.all_tasks() - self._ours - {current}
        for task in broker_tasks:
            task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        broker = self.broker
        if hasattr(broker, "healing"):
            for remedy, count in broker.healing.counts.items():
                self.healed[remedy.value] = self.healed.get(remedy.value, 0) + count
        if hasattr(broker, "transactions"):
            broker.transactions.store.expiry.stop()
            for commit in broker.transactions.store.commits.under_way.values():
                commit.abandon()
            if (timer := broker.transactions.store.completions._timer) is not None:
                timer.cancel()
        if hasattr(broker, "groups"):
            broker.groups.stop()
        if hasattr(self, "logs"):
            self.logs.abandon()

    async def crash(self) -> None:
        """Lose power (with fsync) or end the process, and start again, however often it takes."""
        while True:
            await self.end_process()
            is_kill = self.durability is not Durability.FSYNC or self.random.random() < 0.2
            self.disk = self.disk.kill(self.random) if is_kill else self.disk.crash(self.random)
            self.is_dark.clear()
            if not is_kill and self.random.random() < 0.3:
                self.disk.lose_power_after(self.random.randrange(60))
            try:
                await self.start()
            except PowerLost:
                continue
            self.disk.keep_power()  # its loss was for the start alone
            return

    def on_failure(self, failure: BaseException) -> None:
        if not self.is_dark.is_set():
            self.failures.append(failure)
        self.is_dark.set()

    def _on_loop_exception(self, _loop: asyncio.AbstractEventLoop, context: Any) -> None:
        failure = context.get("exception")
        if not self.is_dark.is_set():
            self.failures.append(failure or RuntimeError(context["message"]))
        self.is_dark.set()

    # Requests.

    def now_ms(self) -> int:
        return self.broker.clock.now_ms()

    async def call(self, request: Message, response_class: type[M], version: int) -> M:
        """Return the broker's answer. Gone: it died before. Waits until there is a broker."""
        await self.is_up.wait()
        task = asyncio.create_task(self._handle(request, version))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        await asyncio.wait((task,))
        if task.cancelled() or self.is_dark.is_set():
            raise Gone  # a process without power sends no answer
        if (failure := task.exception()) is not None:
            self.on_failure(failure)
            raise Gone from None
        answer = task.result()
        assert isinstance(answer, response_class)
        return answer

    async def _handle(self, request: Message, version: int) -> Message | None:
        api = self.apis[request.api_key]
        assert version <= api.max_version
        # As it comes over the wire: nothing in it is shared with the client, nor with a retry.
        request = type(request).decode(bytearray(request.encode(version)), version)
        context = RequestContext(
            request.api_key,
            version,
            0,
            "simulated",
            "10.0.0.1",
            self.broker.clock.now_ms(),
            _NO_CONNECTION,
        )
        try:
            return await when_made(api.handler(self.broker.services, request, context))
        except KafkaError as refusal:
            return api.refuse(request, version, refusal)

    async def close(self) -> None:
        with suppress(PowerLost):
            await self.end_process()
        self.catalog.close()


class _Unconnected:
    """A connection that no client closes."""

    is_closing = False
    is_partial = False
    session = Session()
    listener = Listener("PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1", 9092)

    def close(self) -> None:
        raise AssertionError("nothing here is sent with acks=0")

    def mute(self, pause_ms: int) -> None:
        raise AssertionError("nothing here has a quota")


_NO_CONNECTION = _Unconnected()
