"""A fetch leaves a slow read of the store, and a later one takes what came of it."""

from __future__ import annotations

import asyncio
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
        self.answers: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _read(self) -> Sequence[Chunk]:
        self.begun += 1
        await asyncio.shield(self.answers)
        return [Chunk(KEY, 0, 1, b"batch")]

    async def fetch(self, place: int = 0) -> Sequence[Chunk]:
        return await self.reads.in_time(place, self._read)


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


async def test_a_fetch_waits_where_too_many_reads_are_kept(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "_KEPT_MAX", 1)
    with pytest.raises(NotReadYet):
        await slow.fetch(0)
    waiting = asyncio.create_task(slow.fetch(1))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    slow.answers.set_result(None)
    assert await waiting and await slow.fetch(0) and slow.begun == 2


async def test_two_fetches_of_the_same_place_do_not_disturb_each_other(slow: Slow) -> None:
    both = [asyncio.create_task(slow.fetch()) for _ in range(2)]
    for one in both:
        with pytest.raises(NotReadYet):
            await one
    slow.answers.set_result(None)
    assert await slow.fetch() and slow.begun == 2


async def test_a_client_that_leaves_and_an_end_leave_nothing_behind(slow: Slow) -> None:
    leaving = asyncio.create_task(slow.fetch())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    slow.reads.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
