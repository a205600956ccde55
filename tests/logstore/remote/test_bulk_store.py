"""Reads of objects: how many are under way at once, and for one client."""

from __future__ import annotations

import asyncio
from uuid import UUID

from logstore.remote.bulk_store import BulkStore
from logstore.remote.commit_store import Changes, Chunk, Commit, LogKey, Wanted
from logstore.remote.references import Reference
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.logstore.simulated_objects import SimulatedObjects

KEY = LogKey(UUID(int=1), 0)
DATA = b"batches of a log"


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


async def test_few_reads_wait_for_objects_at_once_and_loads_for_none_of_them() -> None:
    """However little each of a thousand clients asks for, its read brings a whole reference."""
    database, objects = SimulatedDatabase(), SlowObjects()
    database.start_node(1, 0)
    reference = Chunk(KEY, 0, 5, Reference("object", 0, len(DATA)).encode())
    in_rows = Chunk(KEY, 5, 6, DATA)
    assert database.commit(1, 0, Commit(1, 0, Changes([reference, in_rows])))
    objects.objects["object"] = DATA
    store = BulkStore(SimulatedStore(database, 1, 0), objects)
    await store.connect()
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


async def test_a_read_of_many_small_objects_ends_soon() -> None:
    database, objects = SimulatedDatabase(), SimulatedObjects()
    database.start_node(1, 0)
    whole = [Chunk(KEY, number, number + 1, DATA) for number in range(200)]
    references = [
        chunk._replace(data=Reference(f"object {chunk.base_offset}", 0, len(DATA)).encode())
        for chunk in whole
    ]
    # The last ones are in rows still.
    assert database.commit(1, 0, Commit(1, 0, Changes([*references[:150], *whole[150:]])))
    objects.objects |= {f"object {number}": DATA for number in range(150)}
    store = BulkStore(SimulatedStore(database, 1, 0), objects)
    await store.connect()
    assert await store.read(KEY, 0, 1 << 20, 200) == whole[:64]
    assert await store.read(KEY, 100, 1 << 20, 200) == whole[100:]
    assert (await store.load([Wanted(KEY, 0)]))[0].chunks == whole
