"""Reads of objects: how many are under way at once, and for one client; damaged objects."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import pytest

from logstore.remote import bulk_store
from logstore.remote.bulk_store import BulkStore
from logstore.remote.commit_store import (
    Changes,
    Chunk,
    Commit,
    LogKey,
    StoreUnavailable,
    Wanted,
)
from logstore.remote.references import Reference
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.logstore.simulated_objects import SimulatedObjects
from wire.records import SimpleRecord, build_batch

KEY = LogKey(UUID(int=1), 0)
RECORD = SimpleRecord(b"key", b"value", 5)


def batch(base_offset: int, records: int = 1) -> bytes:
    """Return a batch of a log."""
    return bytes(build_batch([RECORD] * records, base_offset=base_offset))


DATA = batch(0, 5)


class SlowObjects(SimulatedObjects):
    """An object store that answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.may_answer = asyncio.Event()

    async def read(self, key: str, position: int, size: int) -> bytes:
        self.asked += 1
        await self.may_answer.wait()
        return await super().read(key, position, size)


async def rows_of(database: SimulatedDatabase) -> SimulatedStore:
    """Return the store of the node that a test has started."""
    store = SimulatedStore(database, 1, 0)
    await store.connect()
    return store


async def test_few_reads_wait_for_objects_at_once_and_loads_for_none_of_them() -> None:
    """However little each of a thousand clients asks for, its read brings a whole reference."""
    database, objects = SimulatedDatabase(), SlowObjects()
    database.start_node(1, 0)
    reference = Chunk(KEY, 0, 5, Reference("object", 0, len(DATA)).encode())
    in_rows = Chunk(KEY, 5, 6, batch(5))
    assert database.commit(1, 0, Commit(1, 0, Changes([reference, in_rows])))
    objects.objects["object"] = DATA
    store = BulkStore(await rows_of(database), objects)
    async with asyncio.timeout(20):
        reads = [asyncio.ensure_future(store.read(KEY, 0, 1, 5)) for _ in range(300)]
        while objects.asked < 64:
            await asyncio.sleep(0)
        # What is in rows waits for none of them: when it has come, so have the rows of the others.
        assert await store.read(KEY, 5, 1, 6) == [in_rows]
        assert objects.asked == 64
        load = asyncio.ensure_future(store.load([Wanted(KEY, 0)]))
        while objects.asked == 64:
            await asyncio.sleep(0)
        objects.may_answer.set()
        whole = reference._replace(data=DATA)
        assert (await load)[0].chunks == [whole, in_rows]
        assert await asyncio.gather(*reads) == [[whole]] * 300


def whole_and_references(count: int) -> tuple[list[Chunk], list[Chunk]]:
    """Return chunks of a batch each, and the same with their data in `object N`."""
    whole = [Chunk(KEY, number, number + 1, batch(number)) for number in range(count)]
    references = [
        chunk._replace(data=Reference(f"object {chunk.base_offset}", 0, len(chunk.data)).encode())
        for chunk in whole
    ]
    return whole, references


async def test_a_read_of_many_small_objects_ends_soon() -> None:
    database, objects = SimulatedDatabase(), SimulatedObjects()
    database.start_node(1, 0)
    whole, references = whole_and_references(200)
    # The last ones are in rows still.
    assert database.commit(1, 0, Commit(1, 0, Changes([*references[:150], *whole[150:]])))
    objects.objects |= {f"object {number}": batch(number) for number in range(150)}
    store = BulkStore(await rows_of(database), objects)
    assert await store.read(KEY, 0, 1 << 20, 200) == whole[:64]
    assert await store.read(KEY, 100, 1 << 20, 200) == whole[100:]
    assert (await store.load([Wanted(KEY, 0)]))[0].chunks == whole


async def test_others_go_on_between_the_looks_at_two_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look takes milliseconds, and a load reads eight objects at a time."""
    database, objects = SimulatedDatabase(), SimulatedObjects()
    database.start_node(1, 0)
    whole, references = whole_and_references(6)
    assert database.commit(1, 0, Commit(1, 0, Changes(references)))
    objects.objects |= {f"object {chunk.base_offset}": chunk.data for chunk in whole}
    store = BulkStore(await rows_of(database), objects)
    turn, looked_in = 0, []

    def look(chunk: Chunk, _source: Reference) -> Chunk:
        looked_in.append(turn)
        return chunk

    monkeypatch.setattr(bulk_store, "_checked", look)
    loading = asyncio.ensure_future(store.load([Wanted(KEY, 0)]))
    while not loading.done():
        turn += 1
        await asyncio.sleep(0)
    assert loading.result()[0].chunks == whole
    assert len({*looked_in}) == len(whole)


async def test_objects_that_clients_cannot_read_are_told_once_for_each_log() -> None:
    """Clients are told only that they may try again."""
    database, objects = SimulatedDatabase(), SimulatedObjects()
    database.start_node(1, 0)
    whole, references = whole_and_references(1)
    keys = [KEY._replace(partition=number) for number in range(3)]
    chunks = [chunk._replace(key=key) for key in keys for chunk in references]
    assert database.commit(1, 0, Commit(1, 0, Changes(chunks)))
    told: list[tuple[LogKey, str]] = []
    store = BulkStore(await rows_of(database), objects, lambda key, why: told.append((key, why)))

    async def fail() -> list[LogKey]:
        for key in keys * 2:
            with pytest.raises(StoreUnavailable):
                await store.read(key, 0, 1, 1)
        found = [key for key, _ in told]
        told.clear()
        return found

    assert await fail() == keys
    objects.loses_request = lambda: True
    assert await fail() == []
    objects.loses_request = bool
    objects.objects |= {f"object {chunk.base_offset}": chunk.data for chunk in whole}
    for key in keys:
        assert len(await store.read(key, 0, 1, 1)) == 1
    objects.loses_request = lambda: True
    assert await fail() == keys[:1], "a bucket that is away is one fault"


async def test_a_log_that_has_left_hides_no_later_fault() -> None:
    database, objects = SimulatedDatabase(), SimulatedObjects()
    database.start_node(1, 0)
    whole, references = whole_and_references(1)
    left, other = KEY, KEY._replace(partition=1)
    chunks = [chunk._replace(key=key) for key in (left, other) for chunk in references]
    assert database.commit(1, 0, Commit(1, 0, Changes(chunks)))
    told: list[LogKey] = []
    store = BulkStore(await rows_of(database), objects, lambda key, why: told.append(key))
    with pytest.raises(StoreUnavailable):
        await store.read(left, 0, 1, 1)
    objects.loses_request = lambda: True
    with pytest.raises(StoreUnavailable):
        await store.read(other, 0, 1, 1)
    assert told == [left, other], "the bucket is away since"
    objects.loses_request = bool
    # It comes back, and clients cannot read it still.
    await store.load([Wanted(left, 1)])
    with pytest.raises(StoreUnavailable):
        await store.read(left, 0, 1, 1)
    assert told == [left, other, left]


async def test_a_bucket_that_was_away_hides_no_object_that_is_missing() -> None:
    database, objects = SimulatedDatabase(), SimulatedObjects()
    database.start_node(1, 0)
    _, references = whole_and_references(1)
    keys = [KEY, KEY._replace(partition=1)]
    chunks = [chunk._replace(key=key) for key in keys for chunk in references]
    assert database.commit(1, 0, Commit(1, 0, Changes(chunks)))
    told: list[LogKey] = []
    store = BulkStore(await rows_of(database), objects, lambda key, why: told.append(key))
    for is_away in (True, False):
        objects.loses_request = partial(bool, is_away)
        for key in keys:
            with pytest.raises(StoreUnavailable):
                await store.read(key, 0, 1, 1)
    assert told == [keys[0], *keys]


WHOLE = batch(3) + batch(4, 2) + batch(9, 2)
DAMAGED = {
    "zeros": bytes(len(WHOLE)),
    "an error's text": (b"<?xml version='1.0'?><Error/>" * 99)[: len(WHOLE)],
    "zeros at the end": WHOLE[:-90] + bytes(90),
    "of another log": batch(0) + batch(1, 2) + batch(3, 2),
    "in another order": batch(3) + batch(9, 2) + batch(4, 2),
    "later ones": batch(3) + batch(4, 2) + batch(10, 2),
    "shifted by a byte": WHOLE[1:] + b"x",
    "of less than a header": WHOLE[:-1],
}


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
async def test_an_object_with_other_bytes_is_as_good_as_none(damaged: bytes) -> None:
    database, objects = SimulatedDatabase(), SimulatedObjects()
    database.start_node(1, 0)
    before = b"another log's"
    reference = Reference("object", len(before), len(damaged)).encode()
    assert database.commit(1, 0, Commit(1, 0, Changes([Chunk(KEY, 3, 11, reference)])))
    store = BulkStore(await rows_of(database), objects)
    objects.objects["object"] = before + damaged
    (found,) = await store.load([Wanted(KEY, 0)])
    assert "object is damaged" in found.away
    with pytest.raises(StoreUnavailable, match="object is damaged"):
        await store.read(KEY, 4, 1, 11)


async def test_batches_with_gaps_between_them_are_no_damage() -> None:
    database, objects = SimulatedDatabase(), SimulatedObjects()
    database.start_node(1, 0)
    whole = Chunk(KEY, 3, 11, WHOLE)
    reference = whole._replace(data=Reference("object", 0, len(WHOLE)).encode())
    assert database.commit(1, 0, Commit(1, 0, Changes([reference])))
    objects.objects["object"] = WHOLE
    store = BulkStore(await rows_of(database), objects)
    assert await store.read(KEY, 4, 1, 11) == [whole]


@pytest.mark.parametrize("is_away", [False, True])
async def test_logs_are_loaded_at_the_same_time_once_the_first_one_has_its_objects(
    is_away: bool,
) -> None:
    """A take-over of many idle partitions would take an answer's time for each of them."""
    database, objects = SimulatedDatabase(), SlowObjects()
    database.start_node(1, 0)
    keys = [LogKey(UUID(int=1), number) for number in range(6)]
    moved = [
        Chunk(key, 0, 5, Reference(f"object {key.partition}", 0, len(DATA)).encode())
        for key in keys[1:]
    ]
    in_rows = Chunk(keys[0], 0, 1, batch(0))
    assert database.commit(1, 0, Commit(1, 0, Changes([in_rows, *moved])))
    if not is_away:
        objects.objects.update((f"object {key.partition}", DATA) for key in keys[1:])
    objects.loses_request = lambda: is_away
    store = BulkStore(await rows_of(database), objects)
    loading = asyncio.ensure_future(store.load([Wanted(key, 0) for key in keys]))
    await idle()
    assert objects.asked == 1
    objects.may_answer.set()
    objects.may_answer = asyncio.Event()
    await idle()
    if not is_away:
        assert objects.asked == 5
        objects.may_answer.set()
    loaded = await asyncio.wait_for(loading, 5)
    assert objects.asked == (1 if is_away else 5)
    assert loaded[0].chunks == [in_rows] and not loaded[0].away
    for chunk, log in zip(moved, loaded[1:], strict=True):
        assert bool(log.away) is is_away
        assert [*log.chunks] == ([] if is_away else [chunk._replace(data=DATA)])


async def idle() -> None:
    """Let everything go on until it waits."""
    for _ in range(50):
        await asyncio.sleep(0)
