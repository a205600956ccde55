"""A fetch leaves a slow read of the store, and a later one takes what came of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from uuid import UUID

import pytest

from logstore.remote import store_reads
from logstore.remote.commit_store import Chunk, LogKey
from logstore.remote.store_reads import StoreReads
from logstore.segments.ledger import NotReadYet
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from wire.error_code import ErrorCode
from wire.errors import KafkaError

KEY = LogKey(UUID(int=1), 0)


class Slow:
    """Reads that end when they are told to."""

    def __init__(self) -> None:
        self.reads = StoreReads(SimulatedStore(SimulatedDatabase(), 1, 0))
        self.begun = 0
        self.found = [Chunk(KEY, 0, 1, b"batch")]
        self.answers: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _read(self) -> Sequence[Chunk]:
        self.begun += 1
        await asyncio.shield(self.answers)
        return self.found

    async def fetch(self, place: int = 0, max_bytes: int = 1) -> Sequence[Chunk]:
        return await self.reads.in_time(place, max_bytes, self._read)


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr(store_reads, "_WAIT_S", 0.01)
    return Slow()


async def test_each_result_is_taken_once(slow: Slow) -> None:
    for _ in range(3):
        with pytest.raises(NotReadYet):
            await slow.fetch()
    assert slow.begun == 1
    slow.answers.set_result(None)
    assert await slow.fetch() and slow.begun == 1
    assert await slow.fetch() and slow.begun == 2


async def test_a_read_that_fails_is_told_to_the_next_fetch(slow: Slow) -> None:
    with pytest.raises(NotReadYet):
        await slow.fetch()
    slow.answers.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "away"))
    with pytest.raises(KafkaError, match="away"):
        await slow.fetch()


async def test_what_no_fetch_asks_for_is_forgotten(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "_KEPT_S", 0.01)
    with pytest.raises(NotReadYet):
        await slow.fetch()
    await asyncio.sleep(0.05)
    slow.answers.set_result(None)
    assert await slow.fetch() and slow.begun == 2


async def test_a_fetch_waits_where_too_much_is_kept(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "_KEPT_BYTES_MAX", 2 * store_reads._CHUNK_BYTES)
    with pytest.raises(NotReadYet):
        await slow.fetch(0)
    waiting = asyncio.create_task(slow.fetch(1))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    slow.answers.set_result(None)
    assert await waiting and await slow.fetch(0) and slow.begun == 2


async def test_fetches_that_arrive_together_keep_no_more_than_others(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "_KEPT_BYTES_MAX", 6 * store_reads._CHUNK_BYTES)
    waiting = [
        asyncio.create_task(slow.fetch(place, store_reads._CHUNK_BYTES)) for place in range(10)
    ]
    done, left = await asyncio.wait(waiting, timeout=0.1)
    assert len(done) == 3 and {type(one.exception()) for one in done} == {NotReadYet}
    slow.answers.set_result(None)
    assert all(await asyncio.gather(*left))


async def test_fetches_of_the_same_place_do_not_disturb_each_other(slow: Slow) -> None:
    for _ in range(2):
        together = [asyncio.create_task(slow.fetch()) for _ in range(3)]
        for one in together:
            with pytest.raises(NotReadYet):
                await one
    slow.answers.set_result(None)
    for _ in range(3):
        assert await slow.fetch()
    assert slow.begun == 3


async def test_that_nothing_was_there_is_asked_again(slow: Slow) -> None:
    """There may be more by now: the log has grown, or fewer of its batches are in memory."""
    with pytest.raises(NotReadYet):
        await slow.fetch()
    found, slow.found = slow.found, []
    slow.answers.set_result(None)
    await asyncio.sleep(0.01)
    slow.found = found
    assert await slow.fetch() and slow.begun == 2
    slow.found = []
    assert not await slow.fetch()


async def test_a_client_that_leaves_and_an_end_leave_nothing_behind(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotReadYet):
        await slow.fetch()
    monkeypatch.setattr(store_reads, "_KEPT_BYTES_MAX", 0)
    leaving = [asyncio.create_task(slow.fetch(place)) for place in (1, 2, 3)]
    await asyncio.sleep(0.02)
    for one in leaving:
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
    await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) == 2
    slow.reads.close()
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_failure_of_which_a_client_hears_no_more_is_no_surprise(slow: Slow) -> None:
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    leaving = asyncio.create_task(slow.fetch())
    await asyncio.sleep(0)
    slow.answers.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "away"))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    del leaving
    await asyncio.sleep(0)
    gc.collect()
    assert not told
