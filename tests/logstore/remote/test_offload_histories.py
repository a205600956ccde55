"""Histories of a log that is written, cleaned, trimmed and moved to objects all at once, while
commits and objects lose requests and answers and nodes start again: each segment holds what its
last cleaning left, and every object that a row names is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import TypeVar
from uuid import UUID

import pytest

from logstore.disk.durability import Durability
from logstore.partition.log_config import LogConfig
from logstore.remote import offload
from logstore.remote.bulk_store import BulkStore
from logstore.remote.commit_store import LogKey, StoreUnavailable, Wanted
from logstore.remote.memory_tail import MemoryTail
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.offload import Offload, Sweep
from logstore.remote.references import decode
from logstore.remote.remote_ledger import RemoteLedger
from logstore.remote.store_commits import StoreCommits
from logstore.remote.store_reads import StoreReads
from logstore.segments.ledger import NotReadYet
from logstore.sync.group_commit import GroupCommit
from tests.logstore.ledgers import open_now
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.logstore.simulated_objects import SimulatedObjects
from tests.simulation.simulated_loop import SimulatedLoop
from wire.errors import KafkaError
from wire.records import BatchHeader, SimpleRecord, build_batch

_T = TypeVar("_T")

KEY = LogKey(UUID(int=7), 0)
PREFIX = "logs/own"
LIMITS = LogConfig(segment_bytes=700)
#: So long one node lives.
LIFE_S = 20.0


class World:
    """The database, the bucket, and what the log should hold."""

    def __init__(self, seed: int, loop: SimulatedLoop) -> None:
        self.random = Random(seed)
        self.loop = loop
        self.database = SimulatedDatabase(self.now_ms)
        self.objects = SimulatedObjects()
        self.objects.on_way = self.pause
        self.incarnation = 0
        #: By offset, what no cleaning has removed; a batch is one record.
        self.batches: dict[int, bytes] = {}
        #: Removed by a commit of which nothing was heard yet: they may be there.
        self.in_doubt: set[int] = set()
        self.cleaned = self.moved = 0

    def now_ms(self) -> int:
        return int(self.loop.now_s * 1000)

    def is_drawn(self, probability: float) -> bool:
        return self.random.random() < probability

    async def pause(self) -> None:
        """Let one request take its time."""
        await asyncio.sleep(self.random.choice((0, 0.0005, 0.003, 0.03, 0.3)))


class _SlowStandby(SimulatedStore):
    """A store whose commits are seen a while before they are proven."""

    standby_s = 0.0

    async def prove(self, number: int) -> None:
        await asyncio.sleep(self.standby_s)
        await super().prove(number)


class Node:
    """One incarnation, and all that it does with the log at once."""

    def __init__(self, world: World, mishap_probability: float) -> None:
        self._world = world
        world.incarnation += 1
        world.database.start_node(1, world.incarnation)
        self._rows = _SlowStandby(
            world.database,
            1,
            world.incarnation,
            random=world.random,
            mishap_probability=mishap_probability,
        )
        self._rows.standby_s = world.random.choice((0, 0, 2.0))
        world.objects.loses_request = lambda: world.is_drawn(mishap_probability)
        world.objects.loses_answer = lambda: world.is_drawn(mishap_probability)
        self.store = BulkStore(self._rows, world.objects)
        self._commits = StoreCommits(self._rows, now_ms=world.now_ms)
        self._group_commit = GroupCommit(
            None, Durability.FSYNC, on_failure=lambda failure: None, medium=self._commits
        )
        self._offload = Offload(self._rows, world.objects, PREFIX, world.incarnation, age_ms=5_000)

    async def open(self) -> None:
        """Take over what is stored."""
        while True:
            with suppress(StoreUnavailable):
                await self._commits.begin()
                (stored,) = await self.store.load([Wanted(KEY)])
                if not stored.away:
                    break
                await self.store.look_again(Wanted(KEY))
            await self._world.pause()
        tail = MemoryTail(self._world.random.choice((0, 1_000)))
        self.ledger = RemoteLedger(
            KEY, self._group_commit, StoreReads(self.store), tail, LIMITS, stored
        )
        open_now(self.ledger)
        self._sweep = Sweep(self._rows, self._world.objects, PREFIX, self._group_commit.settle)

    async def live(self) -> None:
        """Do everything at once for a while, and end in the middle of it."""
        tasks = [
            asyncio.ensure_future(self._forever(work))
            for work in (
                self._write,
                self._clean,
                self._move,
                self._trim,
                self._fail_over,
                self.check,
            )
        ]
        done, _ = await asyncio.wait(
            tasks, timeout=self._world.random.uniform(0, LIFE_S), return_when="FIRST_COMPLETED"
        )
        self._commits.close()
        self.ledger.close()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in done:
            task.result()

    async def _forever(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            with suppress(StoreUnavailable, ObjectsUnavailable, KafkaError):
                await work()
            await self._world.pause()

    async def _write(self) -> None:
        """Append a few batches, which a later process finds once they are durable."""
        world, ledger = self._world, self.ledger
        written: dict[int, bytes] = {}
        for _ in range(world.random.randint(1, 4)):
            offset = ledger.end_offset
            record = SimpleRecord(b"k", bytes(world.random.randint(1, 200)), 5)
            batch = written[offset] = bytes(build_batch([record], base_offset=offset))
            ledger.append(batch, BatchHeader.parse(batch))
        world.batches |= written
        world.in_doubt |= written.keys()
        if (waiter := ledger.until_durable(ledger.end_offset)) is not None:
            await waiter
        world.in_doubt -= written.keys()

    async def _clean(self) -> None:
        """Keep some of the batches of a few segments, which are durable, as all that is cleaned."""
        world, segments = self._world, self.ledger.segments
        durable = self.ledger.durable_end_offset
        bases = [one.base_offset for one in segments.facts() if one.end_offset <= durable][:-1]
        if not bases:
            return
        first = world.random.randrange(len(bases))
        chosen = bases[first : first + world.random.randint(1, 3)]
        replacement = segments.replacement(chosen)
        found: list[tuple[BatchHeader, memoryview]] = []
        for base_offset in chosen:
            source = await segments.read_sealed(base_offset)
            if source is None:
                return
            found += source.batches()
        if replacement is None:
            return
        gone: set[int] = set()
        for header, batch in found:
            if header is not found[-1][0] and world.is_drawn(0.6):
                gone.add(header.base_offset)
            else:
                replacement.append(batch, header)
        replacement.seal(b"")
        world.in_doubt |= gone
        if await replacement.swap(_in_place, lambda: None):
            world.cleaned += 1
            for offset in gone:
                world.batches.pop(offset, None)
        world.in_doubt -= gone

    async def _move(self) -> None:
        """Move what is due, and sweep now and then."""
        world = self._world
        if await self._offload.offload(self.ledger, world.now_ms()):
            world.moved += 1
        elif world.is_drawn(0.3):
            await self._sweep.sweep()

    async def _trim(self) -> None:
        await asyncio.sleep(self._world.random.uniform(0, LIFE_S))
        start, end = self.ledger.start_offset, self.ledger.durable_end_offset
        start_offset = self._world.random.randint(start, end)
        # As `RemoteDirectory.persist_start_offsets`.
        self.ledger.want_start(start_offset)
        await self._group_commit.settle()
        self.ledger.trim(start_offset)

    async def _fail_over(self) -> None:
        """Let a standby take over, which lacks what is not proven yet."""
        await asyncio.sleep(self._world.random.uniform(0, LIFE_S / 4))
        self._world.database.fail_over()

    async def check(self) -> None:
        """Read all sealed segments. Raises AssertionError, StoreUnavailable."""
        world, ledger = self._world, self.ledger
        for segment in [*ledger.segments.facts()][:-1]:
            source = await ledger.segments.read_sealed(segment.base_offset)
            if source is None or segment not in ledger.segments.facts():
                continue
            found = {header.base_offset: bytes(batch) for header, batch in source.batches()}
            size_bytes = sum(map(len, found.values()))
            assert size_bytes == segment.size_bytes, f"{size_bytes} bytes in {segment}"
            for offset, batch in found.items():
                assert world.batches.get(offset, batch) == batch, f"another batch at {offset}"
            for offset in world.batches.keys() - found.keys() - world.in_doubt:
                is_inside = segment.base_offset <= offset < segment.end_offset
                assert not is_inside or offset < ledger.start_offset, f"no batch at {offset}"

    async def check_all(self) -> dict[int, bytes]:
        """Return what is there, where nothing else goes on. Raises AssertionError."""
        world, ledger = self._world, self.ledger
        await self.check()
        position, found = ledger.start_offset, dict[int, bytes]()
        while position < ledger.end_offset:
            try:
                data = bytes(await ledger.batches.read_cold(position, 900, ledger.end_offset))
            except NotReadYet:
                continue
            if not data:
                break
            while data:
                header = BatchHeader.parse(data)
                assert header.base_offset >= position or not found, "twice, or in another order"
                found[header.base_offset] = data[: header.size_bytes]
                data, position = data[header.size_bytes :], header.next_offset
        changed = {at for at, batch in found.items() if world.batches.get(at) != batch}
        assert not changed, f"never written, or removed: {changed}"
        kept = {at for at in world.batches if at >= ledger.start_offset} - world.in_doubt
        assert found.keys() >= kept, f"lost: {kept - found.keys()}"
        await self._sweep.sweep()
        await self._sweep.sweep()
        named = {decode(data).object_key for data in world.database.references()}
        assert named == world.objects.objects.keys(), "lost or left behind"
        return found


async def _in_place(work: Callable[[], _T]) -> _T:
    return work()


async def _history(world: World) -> None:
    for _ in range(world.random.randint(1, 3)):
        node = Node(world, world.random.choice((0.0, 0.1)))
        await node.open()
        await node.live()
        last = Node(world, 0.0)
        await last.open()
        try:
            world.batches = await last.check_all()
        except KafkaError as gone:
            raise AssertionError(f"lost: {gone}") from gone
        world.in_doubt.clear()
        last.ledger.close()


@contextmanager
def _small_objects() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offload, "OBJECT_BYTES", 2_000)
        patch.setattr(offload, "REFERENCE_BYTES", 500)
        yield


def tell(seed: int) -> World:
    """One history. AssertionError: a segment, a batch or an object is not what it should be."""
    loop = SimulatedLoop()
    world = World(seed, loop)
    try:
        with _small_objects():
            loop.run_until_complete(_history(world))
    finally:
        loop.close()
    return world


@pytest.mark.parametrize("seed", range(20))
def test_each_segment_holds_what_its_last_cleaning_left(seed: int) -> None:
    tell(seed)


def test_the_histories_clean_and_move() -> None:
    worlds = [tell(seed) for seed in range(5)]
    assert sum(world.cleaned for world in worlds) > 20
    assert sum(world.moved for world in worlds) > 5


def test_a_move_that_looks_for_replacements_too_early_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_move = RemoteLedger._begin_move

    def careless(ledger: RemoteLedger) -> object:
        pending = ledger._move
        if pending is not None:
            ledger._move = pending._replace(replacements=ledger.replacements)
        return begin_move(ledger)

    monkeypatch.setattr(RemoteLedger, "_begin_move", careless)
    _assert_found()


def test_a_sweep_that_believes_what_is_not_proven_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def believe(group_commit: GroupCommit) -> None:
        """Wait for nothing."""

    monkeypatch.setattr(GroupCommit, "settle", believe)
    _assert_found()


def _assert_found() -> None:
    with pytest.raises(AssertionError):
        # Of the first hundred histories 69 and 87 show the sweep that believes.
        for seed in range(65, 165):
            tell(seed)
