"""Chunks that move to objects: readers see no difference, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from logstore.partition.log_config import LogConfig
from logstore.remote import offload
from logstore.remote.bulk_store import BulkStore
from logstore.remote.commit_store import Chunk, Move, NodeFenced, StoreUnavailable, Wanted
from logstore.remote.memory_tail import MemoryTail
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.offload import Offload, Sweep, referring
from logstore.remote.references import Reference, decode, is_reference
from logstore.remote.remote_ledger import RemoteLedger
from logstore.remote.store_reads import StoreReads
from logstore.sync.sync_executors import Sync
from tests.logstore.ledgers import open_now
from tests.logstore.remote.simulated_store import SimulatedStore
from tests.logstore.remote_stores import KEY, NODE, SteppedStore
from tests.logstore.simulated_objects import SimulatedObjects
from wire.records import BatchHeader, SimpleRecord, build_batch

_T = TypeVar("_T")

PREFIX = "logs/own"

LIMITS = LogConfig(segment_bytes=1 << 30)
AGE_MS = 600_000


@pytest.fixture(autouse=True)
def _small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "OBJECT_BYTES", 4_000)
    monkeypatch.setattr(offload, "REFERENCE_BYTES", 1_000)


class World:
    """One log in rows and objects, and what a reader should find in it."""

    def __init__(self) -> None:
        self.objects = SimulatedObjects()
        self.stepped = SteppedStore(LIMITS)
        self.rows = SimulatedStore(self.stepped.database, NODE, 0)
        asyncio.run(self.rows.connect())
        self.store = BulkStore(self.rows, self.objects)
        self.stepped.reads = StoreReads(self.store)
        self.offload = Offload(self.rows, self.objects, PREFIX, incarnation=0, age_ms=AGE_MS)
        self.batches: list[bytes] = []
        # No batch stays in memory: all reads go to the store.
        self.ledger = self.stepped.load(tail=MemoryTail(0))
        open_now(self.ledger)

    async def open_again(self) -> None:
        """Close the log, and open it with what the store has."""
        self.ledger.close()
        (stored,) = await self.store.load([Wanted(KEY, 0)])
        stepped = self.stepped
        self.ledger = RemoteLedger(
            KEY, stepped.group_commit, stepped.reads, MemoryTail(0), LIMITS, stored
        )
        open_now(self.ledger)

    def append(self, count: int, value_bytes: int = 400) -> None:
        """Append batches of one record, each by a commit of its own."""
        for _ in range(count):
            offset = self.ledger.end_offset
            value = bytes([offset % 251]) * value_bytes
            batch = bytes(build_batch([SimpleRecord(b"k", value, 5)], base_offset=offset))
            self.batches.append(batch)
            self.ledger.append(batch, BatchHeader.parse(batch))
            self.stepped.executor.run()

    async def carried_out(self, now_ms: int = 0) -> bool:
        """Offload once, while commits return."""
        task = asyncio.ensure_future(self.offload.offload(self.ledger, now_ms))
        while not task.done():
            await asyncio.sleep(0)
            self.stepped.executor.run()
        return task.result()

    async def begin_clean(self, base_offset: int, kept: list[bytes]) -> asyncio.Future[bool]:
        """Want these batches in the place of the segment that begins there, by the next commit."""
        replacement = self.ledger.segments.replacement([base_offset])
        assert replacement is not None
        for batch in kept:
            replacement.append(batch, BatchHeader.parse(batch))
        replacement.seal(b"")
        swapping = asyncio.ensure_future(replacement.swap(_at_once, lambda: None))
        await asyncio.sleep(0)
        return swapping

    async def clean(self, base_offset: int, kept: list[bytes]) -> None:
        """Let these batches take the place of the segment that begins there."""
        swapping = await self.begin_clean(base_offset, kept)
        self.stepped.executor.run()
        assert await swapping

    def chunks(self) -> list[Chunk]:
        return [*self.stepped.database.load(Wanted(KEY, 0)).chunks]

    async def read(self, offset: int, max_bytes: int = 1 << 20) -> bytes:
        return bytes(await self.ledger.batches.read_cold(offset, max_bytes, self.ledger.end_offset))

    async def check(self) -> None:
        """Everything is read back, from every offset on, byte for byte."""
        for offset in range(self.ledger.start_offset, self.ledger.end_offset):
            position, found = offset, b""
            while position < self.ledger.end_offset:
                part = await self.read(position, 1_500)
                assert part
                found += part
                position = offset + len([*_split(found)])
            assert found == b"".join(self.batches[offset:])


@pytest.fixture
def world() -> World:
    return World()


def _split(data: bytes) -> Iterator[BatchHeader]:
    position = 0
    while position < len(data):
        header = BatchHeader.parse(data[position:])
        yield header
        position += header.size_bytes


async def test_enough_chunks_become_one_object(world: World) -> None:
    world.append(8)
    assert not await world.carried_out()
    assert not world.objects.objects
    world.append(4)
    assert await world.carried_out()
    (data,) = world.objects.objects.values()
    chunks = world.chunks()
    moved = [chunk for chunk in chunks if is_reference(chunk.data)]
    assert [chunk.base_offset for chunk in moved] == [0, 3, 6]
    assert data == b"".join(world.batches[: moved[-1].end_offset])
    assert world.ledger.moved_to == moved[-1].end_offset == 9
    await world.check()


@pytest.mark.parametrize("is_moved", [True, False])
async def test_the_room_of_what_was_removed_is_made_free_now_and_then(
    world: World, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    monkeypatch.setattr(offload, "RECLAIM_BYTES", 6_000)
    counts = []
    for _ in range(4):
        world.append(10)
        if is_moved:
            assert await world.carried_out()
        else:
            world.ledger.roll()
            world.append(1)
            world.ledger.trim(world.ledger.end_offset - 1)
            world.stepped.executor.run()
        await world.offload.reclaim()
        counts.append(world.stepped.database.reclaimed)
    assert counts == [0, 1, 1, 2]


async def test_few_chunks_wait_ten_minutes(world: World) -> None:
    world.append(2)
    assert not await world.carried_out(1_000)
    assert not await world.carried_out(1_000 + AGE_MS - 1)
    assert not world.objects.objects
    assert await world.carried_out(1_000 + AGE_MS)
    assert len(world.objects.objects) == 1
    assert not await world.carried_out(1_000 + 2 * AGE_MS)
    await world.check()


async def test_a_log_that_is_opened_again_goes_on_where_it_was(world: World) -> None:
    world.append(12)
    assert await world.carried_out()
    await world.open_again()
    assert world.ledger.moved_to == 9
    world.append(10)
    assert await world.carried_out()
    assert len(world.objects.objects) == 2
    await world.check()


async def test_an_object_store_that_fails_leaves_the_rows(world: World) -> None:
    world.append(12)
    before = world.chunks()
    world.objects.loses_answer = lambda: True
    with pytest.raises(ObjectsUnavailable):
        await world.carried_out()
    assert world.chunks() == before
    await world.check()
    world.objects.loses_answer = bool
    assert await world.carried_out()
    # The one whose writer heard nothing is there too, until two sweeps have not found its name.
    assert len(world.objects.objects) == 2
    sweep = Sweep(world.rows, world.objects, PREFIX, _nothing)
    assert [await sweep.sweep(), await sweep.sweep(), await sweep.sweep()] == [0, 1, 0]
    await world.check()


async def test_what_the_cleaner_replaced_meanwhile_is_not_brought_back(world: World) -> None:
    world.append(12)
    world.ledger.roll()
    world.stepped.executor.run()
    kept = world.batches[11]
    segment = [*world.ledger.segments.base_offsets][0]

    async def clean() -> None:
        swapping = await world.begin_clean(segment, [kept])
        while not swapping.done():
            await asyncio.sleep(0)
            world.stepped.executor.run()
        assert swapping.result()

    # The cleaner is done while the object is on its way.
    world.objects.on_way = clean
    task = asyncio.ensure_future(world.offload.offload(world.ledger, 0))
    while not task.done():
        await asyncio.sleep(0)
        world.objects.on_way = _nothing
        world.stepped.executor.run()
    assert not task.result()
    assert not world.objects.objects
    assert await world.read(0) == kept


async def test_a_commit_behind_the_cleaners_does_not_bring_back_what_that_replaces(
    world: World,
) -> None:
    """Commits are pipelined: the second begins before the first has returned."""
    world.append(12)
    world.ledger.roll()
    world.stepped.executor.run()
    swapping = await world.begin_clean(0, world.batches[11:])
    first = world.ledger.begin_sync()
    data = b"".join(world.batches)
    move = Move(KEY, 0, 12, (Chunk(KEY, 0, 12, data),))
    moving = asyncio.ensure_future(world.ledger.move(move, world.ledger.replacements))
    await asyncio.sleep(0)
    second = world.ledger.begin_sync()
    for sync in (first, second):
        world.ledger.complete_sync(sync)
    assert await swapping
    assert not await moving


async def test_a_commit_between_the_cleaners_and_its_return_brings_nothing_back(
    world: World,
) -> None:
    """The move is asked for while the cleaner's commit is under way, and begins behind it."""
    world.append(12)
    world.ledger.roll()
    world.stepped.executor.run()
    replacements = world.ledger.replacements
    swapping = await world.begin_clean(0, world.batches[11:])
    first = world.ledger.begin_sync()
    data = b"".join(world.batches)
    move = Move(KEY, 0, 12, (Chunk(KEY, 0, 12, data),))
    moving = asyncio.ensure_future(world.ledger.move(move, replacements))
    await asyncio.sleep(0)
    world.ledger.complete_sync(first)
    world.ledger.complete_sync(world.ledger.begin_sync())
    assert await swapping
    assert not await moving


async def test_a_commit_returns_to_a_cleaner_and_a_mover_that_were_cancelled(world: World) -> None:
    """A stop cancels both while their commits are under way; the other appends are answered."""
    world.append(24)
    world.ledger.roll()
    world.stepped.executor.run()
    swapping = await world.begin_clean(0, world.batches[11:])
    swap = world.ledger.begin_sync()
    swapping.cancel()
    await asyncio.sleep(0)
    world.ledger.complete_sync(swap)
    end = world.ledger.end_offset
    move = Move(KEY, 0, end, (Chunk(KEY, 0, end, b"".join(world.batches)),))
    moving = asyncio.ensure_future(world.ledger.move(move, world.ledger.replacements))
    await asyncio.sleep(0)
    moved = world.ledger.begin_sync()
    moving.cancel()
    await asyncio.sleep(0)
    world.ledger.complete_sync(moved)
    assert world.ledger.moved_to == end and swapping.cancelled() and moving.cancelled()


async def _cancelled_under_way(world: World, *, swaps: bool) -> Sync:
    """Let a commit with a swap or a move begin, whose cleaner or mover is cancelled meanwhile."""
    world.append(24)
    world.ledger.roll()
    world.stepped.executor.run()
    if swaps:
        task = await world.begin_clean(0, world.batches[11:])
    else:
        move = Move(KEY, 0, 24, (Chunk(KEY, 0, 24, b"".join(world.batches)),))
        task = asyncio.ensure_future(world.ledger.move(move, world.ledger.replacements))
        await asyncio.sleep(0)
    under_way = world.ledger.begin_sync()
    task.cancel()
    await asyncio.wait((task,))
    return under_way


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize("is_fenced", [True, False])
async def test_the_end_of_a_commit_whose_cleaner_or_mover_was_cancelled_is_no_error_of_the_loop(
    world: World, swaps: bool, is_fenced: bool
) -> None:
    """Group commit tells of a failure, and that a log is closed is none."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    under_way = await _cancelled_under_way(world, swaps=swaps)
    if is_fenced:
        world.ledger.fail_waiters(NodeFenced("taken over"))
    else:
        world.ledger.close()
    del under_way
    assert not unheard


async def _nothing() -> None:
    """The usual way."""


async def _at_once(work: Callable[[], _T]) -> _T:
    raise AssertionError("a swap in the store needs no thread")


async def test_what_was_cleaned_moves_once_more(world: World) -> None:
    world.append(12)
    world.ledger.roll()
    world.stepped.executor.run()
    assert await world.carried_out()
    await world.clean(0, world.batches[2:12])
    assert world.ledger.moved_to == 0
    assert not any(is_reference(chunk.data) for chunk in world.chunks())
    assert await world.carried_out()
    assert await world.read(0) == b"".join(world.batches[2:12])
    sweep = Sweep(world.rows, world.objects, PREFIX, _nothing)
    assert [await sweep.sweep(), await sweep.sweep()] == [0, 1]
    assert await world.read(0) == b"".join(world.batches[2:12])


async def test_what_the_cleaner_made_small_holds_nothing_up(world: World) -> None:
    for count in (4, 12):
        world.append(count)
        world.ledger.roll()
        world.stepped.executor.run()
    assert await world.carried_out()
    await world.clean(0, world.batches[3:4])
    world.batches[:4] = world.batches[3:4]
    world.append(20)
    while await world.carried_out():
        pass
    rows = [chunk for chunk in world.chunks() if not is_reference(chunk.data)]
    assert sum(len(chunk.data) for chunk in rows) < offload.OBJECT_BYTES
    assert await _whole(world) == b"".join(world.batches)


@pytest.mark.parametrize("cleaned", [0, 4])
async def test_a_segment_that_is_cleaned_after_its_move_leaves_its_neighbours_alone(
    world: World, cleaned: int
) -> None:
    for count in (4, 4, 4):
        world.append(count)
        world.ledger.roll()
        world.stepped.executor.run()
    assert await world.carried_out()
    kept = world.batches[cleaned + 1]
    await world.clean(cleaned, [kept])
    world.batches[cleaned : cleaned + 4] = [kept]
    assert await _whole(world) == b"".join(world.batches)
    await world.open_again()
    assert await _whole(world) == b"".join(world.batches)


async def _whole(world: World) -> bytes:
    """Return all batches, as a consumer reads them."""
    position, found = 0, b""
    while position < world.ledger.end_offset:
        part = await world.read(position, 1_500)
        found += part
        position = [*_split(part)][-1].next_offset
    return found


async def test_retention_that_is_faster_wins(world: World) -> None:
    world.append(12)
    world.ledger.roll()
    world.append(1)

    async def trim() -> None:
        world.objects.on_way = _nothing
        world.ledger.trim(12)

    world.objects.on_way = trim
    assert not await world.carried_out()
    assert not any(is_reference(chunk.data) for chunk in world.chunks())
    assert not world.objects.objects
    assert await world.read(12) == world.batches[12]


async def test_a_closed_log_moves_nothing(world: World) -> None:
    world.append(12)

    async def close() -> None:
        world.objects.on_way = _nothing
        world.ledger.close()

    world.objects.on_way = close
    assert not await world.carried_out()
    assert not world.objects.objects


async def test_an_object_that_is_gone_is_told_and_not_waited_for(world: World) -> None:
    world.append(12)
    assert await world.carried_out()
    world.objects.objects.clear()
    with pytest.raises(StoreUnavailable, match="has no"):
        await world.store.read(KEY, 0, 1, 12)


async def test_an_object_that_is_replaced_during_a_read_is_read_in_its_new_place(
    world: World,
) -> None:
    world.append(12)
    assert await world.carried_out()
    (old,) = world.objects.objects

    async def replaced() -> None:
        world.objects.on_way = _nothing
        world.objects.objects["logs/new"] = world.objects.objects.pop(old)
        log = world.stepped.database._logs[KEY]
        for at, chunk in enumerate(log.chunks):
            if is_reference(chunk.data):
                renamed = decode(chunk.data)._replace(object_key="logs/new")
                log.chunks[at] = chunk._replace(data=renamed.encode())

    world.objects.on_way = replaced
    found = await world.store.read(KEY, 0, 1, 12)
    assert found[0].data == b"".join(world.batches[:3])


def test_references_stand_for_neighbours() -> None:
    chunks = [Chunk(KEY, at, at + 1, bytes(size)) for at, size in enumerate((600, 600, 2_000, 9))]
    references = referring(chunks, "o", [0], 1_000)
    assert [(one.base_offset, one.end_offset, decode(one.data)) for one in references] == [
        (0, 2, Reference("o", 0, 1_200)),
        (2, 3, Reference("o", 1_200, 2_000)),
        (3, 4, Reference("o", 3_200, 9)),
    ]


def test_a_reference_lies_within_one_segment() -> None:
    # Between the first two chunks the cleaner has left a gap, in which a segment begins.
    chunks = [Chunk(KEY, at, at + 1, bytes(10)) for at in (1, 5, 6, 7)]
    references = referring(chunks, "o", [0, 4, 7], 1_000)
    assert [(one.base_offset, one.end_offset, decode(one.data)) for one in references] == [
        (1, 2, Reference("o", 0, 10)),
        (5, 7, Reference("o", 10, 20)),
        (7, 8, Reference("o", 30, 10)),
    ]


def test_a_reference_of_a_later_version_is_refused() -> None:
    data = bytearray(Reference("o", 1, 2).encode())
    data[1] = 2
    with pytest.raises(ValueError, match="version 2"):
        decode(bytes(data))


async def test_what_the_cleaner_brings_back_is_told_apart_from_what_never_moved(
    world: World,
) -> None:
    for count in (9, 3):
        world.append(count)
        world.ledger.roll()
        world.stepped.executor.run()
    assert await world.carried_out()
    behind = sum(map(len, world.batches[9:]))
    assert world.ledger.bytes_in_rows == world.ledger.bytes_never_moved == behind
    await world.clean(0, world.batches[2:9])
    assert world.ledger.moved_to == 0
    await world.open_again()
    assert world.ledger.bytes_never_moved == behind
    assert world.ledger.bytes_in_rows == behind + sum(map(len, world.batches[2:9]))
