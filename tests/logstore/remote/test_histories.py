"""Histories of nodes that commit to a store which loses requests and replies, is taken over and
fails over: what was acknowledged is there, once, in order."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any
from uuid import UUID

import pytest

from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation
from logstore.remote.commit_store import Commit
from logstore.remote.hot_batches import batches_of
from logstore.remote.remote_directory import RemoteDirectory
from logstore.remote.store_commits import StoreCommits
from logstore.sync.group_commit import GroupCommit, LedgerClosed
from tests.logstore.partitions import batch_of
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.simulation.simulated_loop import SimulatedLoop
from wire.records import iterate_records

TOPIC_ID = UUID(int=1)
CONFIG = LogConfig(segment_bytes=2_000, snapshot_interval_bytes=1_000)


class World:
    """A database, and one incarnation of a node after another."""

    def __init__(self, seed: int, loop: SimulatedLoop) -> None:
        self.random = Random(seed)
        self.loop = loop
        self.database = SimulatedDatabase(self.now_ms)
        self.incarnation = 0
        #: What each incarnation has answered, in the order of its answers.
        self.acknowledged: dict[int, list[bytes]] = {}
        self._count = 0

    def now_ms(self) -> int:
        return int(self.loop.now_s * 1000)

    async def take_over(self, *, mishap_probability: float = 0.2) -> _Node:
        """Start a new incarnation, which fences the one before, and open its log."""
        self.incarnation += 1
        self.database.start_node(1, self.incarnation)
        node = _Node(self, mishap_probability)
        await node.open()
        return node

    def next_value(self) -> bytes:
        self._count += 1
        return b"%06d-" % self._count + bytes(self.random.randint(1, 100))


class _Node:
    """One incarnation. It goes on until a failure, also when another node leads by then."""

    log: PartitionLog

    def __init__(self, world: World, mishap_probability: float) -> None:
        self._world = world
        self._epoch = world.incarnation
        store = SimulatedStore(
            world.database,
            1,
            world.incarnation,
            random=world.random,
            mishap_probability=mishap_probability,
        )
        store.has_standby = world.random.random() < 0.7
        commits = StoreCommits(store, now_ms=world.now_ms)
        self._group_commit = GroupCommit(
            None, Durability.FSYNC, on_failure=lambda failure: None, medium=commits
        )
        self.directory = RemoteDirectory(
            store,
            store,
            commits,
            self._group_commit,
            steady_ms=world.now_ms,
            is_loaded_whole=lambda topic: False,
            tail_bytes=3_000,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        opening = self.directory.opening("t", 0, TOPIC_ID, CONFIG, self._epoch)
        (log,) = await self.directory.open_together([opening])
        assert log is not None
        self.log = log

    def write(self) -> None:
        """Append a record, which is acknowledged when it is durable."""
        if self._group_commit.failure is None:
            self._tasks.append(asyncio.ensure_future(self._write()))

    async def _write(self) -> None:
        value = self._world.next_value()
        batch = batch_of(value)
        with suppress(StorageFailure, LedgerClosed):
            end_offset = self.log.append(self.log.check(batch, 1_000)).end_offset
            await self.log.durable(end_offset)
            self._world.acknowledged.setdefault(self._epoch, []).append(value)

    async def ended(self) -> None:
        """Return when everything is acknowledged, or failed."""
        await asyncio.gather(*self._tasks)
        self.directory.abandon()


async def _history(world: World) -> None:
    nodes = []
    for _ in range(world.random.randint(1, 3)):
        node = await world.take_over()
        nodes.append(node)
        for _ in range(world.random.randint(0, 15)):
            # Zombies write on.
            world.random.choice(nodes).write()
            if world.random.random() < 0.1:
                world.database.fail_over()
            await asyncio.sleep(world.random.choice((0, 0, 0.001, 0.05)))
        if world.random.random() < 0.5:
            await asyncio.sleep(3)
    for node in nodes:
        await node.ended()
    last = await world.take_over(mishap_probability=0)
    stored = await _stored(last.log)
    last.directory.abandon()
    assert len({*stored}) == len(stored), "twice"
    for acknowledged in world.acknowledged.values():
        missing = [value for value in acknowledged if value not in stored]
        assert not missing, f"acknowledged and lost: {missing}"
        places = [stored.index(value) for value in acknowledged]
        assert places == sorted(places), "in another order"


async def _stored(log: PartitionLog) -> list[bytes]:
    """Read everything, from memory or from the store."""
    values: list[bytes] = []
    while (offset := len(values)) < log.log_end_offset:
        found = await log.reader.read_cold(offset, 300, Isolation.READ_UNCOMMITTED)
        values += [
            bytes(record.value or b"")
            for _, batch in batches_of(bytes(found.records))
            for record in iterate_records(batch)
        ]
    return values


def tell(seed: int) -> None:
    """One history. AssertionError: something was lost, or two have written one log."""
    loop = SimulatedLoop()
    broken: list[AssertionError] = []
    history = loop.create_task(_history(World(seed, loop)))

    def on_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failure = context.get("exception")
        if isinstance(failure, AssertionError):
            # It would have ended a node: what waits for its commits would wait for ever.
            broken.append(failure)
            history.cancel()

    loop.set_exception_handler(on_exception)
    try:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(history)
    finally:
        loop.run_until_complete(_end_the_rest())
        loop.close()
    if broken:
        raise broken[0]


async def _end_the_rest() -> None:
    """Cancel what still runs, and let it end."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


@pytest.mark.parametrize("seed", range(40))
def test_what_was_acknowledged_is_there(seed: int) -> None:
    tell(seed)


def _is_found(seeds: range) -> bool:
    for seed in seeds:
        try:
            tell(seed)
        except AssertionError:
            return True
    return False


def test_a_store_without_its_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced = SimulatedDatabase.commit

    def commit(database: SimulatedDatabase, node_id: int, incarnation: int, commit: Commit) -> bool:
        node = database.nodes[node_id]
        as_if = commit._replace(previous=node.number)
        return fenced(database, node_id, node.incarnation, as_if)

    monkeypatch.setattr(SimulatedDatabase, "commit", commit)
    assert _is_found(range(100))


def test_a_commit_that_is_believed_before_it_is_proven_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def believing(store: SimulatedStore, number: int) -> None:
        store.proven = max(store.proven, number)

    monkeypatch.setattr(SimulatedStore, "prove", believing)
    assert _is_found(range(100))


def test_a_proof_of_another_server_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def prove(database: SimulatedDatabase, node_id: int, incarnation: int, number: int) -> bool:
        database.confirm()
        return True

    monkeypatch.setattr(SimulatedDatabase, "prove", prove)
    assert _is_found(range(100))
