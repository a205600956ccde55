"""A fetch that waits is woken by what becomes visible, also by what was appended before it came."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from logstore.partition.reader import Isolation, LogReader, Slice
from logstore.segments.ledger import NotReadYet
from magnetar.runtime import fetching
from magnetar.runtime.delayed_response import DelayedResponse, DelayedResponses
from magnetar.runtime.fetch_watch import FetchWatch, PartitionKey
from magnetar.runtime.fetching import Fetch, IdleFetch, PartitionRead
from magnetar.runtime.response_memory import HeldResponse, ResponseMemory
from magnetar.runtime.shared_timers import SharedTimers
from magnetar.runtime.turns import Turns
from tests.logstore.partitions import SteppedPartition, batch_of
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.fetch import FetchResponse


async def waiting(fetch: Fetch) -> asyncio.Task[None]:
    """Start the fetch; it has read and sleeps when this returns."""
    task = asyncio.create_task(fetch.perform())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


def fetch_of(
    *reads: PartitionRead,
    isolation: Isolation,
    min_bytes: int,
    max_wait_ms: int = 60_000,
) -> Fetch:
    by_key: dict[PartitionKey, PartitionRead] = {
        ("t", number): read for number, read in enumerate(reads)
    }
    return Fetch(
        FetchWatch(by_key),
        by_key.__getitem__,
        isolation,
        SharedTimers(asyncio.get_running_loop()),
        Turns(),
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        ends_at_s=asyncio.get_running_loop().time() + max_wait_ms / 1000,
        held=HeldResponse(ResponseMemory(-1)),
    )


class CountedReads(PartitionRead):
    """A read that counts how often it looked into the log."""

    count = 0

    def read_now(
        self, isolation: Isolation, limit_bytes: int, *, at_least_one: bool, in_file: bool = False
    ) -> bool:
        self.count += 1
        return super().read_now(isolation, limit_bytes, at_least_one=at_least_one, in_file=in_file)


@pytest.mark.parametrize("isolation", Isolation)
async def test_what_was_appended_and_not_yet_durable_wakes_a_fetch(isolation: Isolation) -> None:
    partition = SteppedPartition()
    partition.log.append(partition.log.check(batch_of(b"x"), 1_000))
    read = PartitionRead(partition.log, 0, 1 << 20)
    task = await waiting(fetch_of(read, isolation=isolation, min_bytes=1))
    partition.settle()
    await asyncio.wait_for(task, 5)
    assert read.size_bytes and read.result is not None
    assert read.result.high_watermark == 1


async def test_batches_are_read_again_once_enough_of_them_is_visible() -> None:
    partition = SteppedPartition()
    size = len(batch_of(b"x"))
    partition.log.append(partition.log.check(batch_of(b"x"), 1_000))
    read = PartitionRead(partition.log, 0, 1 << 20)
    fetch = fetch_of(read, isolation=Isolation.READ_UNCOMMITTED, min_bytes=3 * size)
    task = await waiting(fetch)
    for _ in range(2):
        partition.settle()
        partition.log.append(partition.log.check(batch_of(b"x"), 1_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not read.size_bytes and not task.done()
    partition.settle()
    await asyncio.wait_for(task, 5)
    assert read.size_bytes == 3 * size


class ColdReads(PartitionRead):
    """A read that waits for a store, which may refuse it."""

    is_refused = False

    def read_now(
        self, isolation: Isolation, limit_bytes: int, *, at_least_one: bool, in_file: bool = False
    ) -> bool:
        if limit_bytes or at_least_one:
            return False
        return super().read_now(isolation, limit_bytes, at_least_one=at_least_one, in_file=in_file)

    async def read_cold(
        self, isolation: Isolation, limit_bytes: int, *, at_least_one: bool
    ) -> None:
        await asyncio.sleep(0.02)
        if self.is_refused:
            self.refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "away"))
        else:
            super().read_now(isolation, limit_bytes, at_least_one=at_least_one)


class LateReads(ColdReads):
    """A read of a remote store that is slow."""

    read_cold = PartitionRead.read_cold


async def test_a_partition_that_a_slow_store_reads_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fetch is answered at once, and the partition is due in the next one."""

    async def read_cold(*_: object, **__: object) -> Slice:
        raise NotReadYet

    late, hot = SteppedPartition(), SteppedPartition()
    monkeypatch.setattr(LogReader, "read_cold", read_cold)
    for partition in (late, hot):
        partition.append(b"x")
        partition.settle()
    reads = [LateReads(late.log, 0, 1 << 20), PartitionRead(hot.log, 0, 1 << 20)]
    fetch = fetch_of(*reads, isolation=Isolation.READ_UNCOMMITTED, min_bytes=1)
    await asyncio.wait_for(fetch.perform(), 5)
    assert reads[0].error is None and not reads[0].size_bytes
    assert reads[0].result is not None and reads[0].result.high_watermark == 1
    assert reads[1].size_bytes
    alone = fetch_of(reads[0], isolation=Isolation.READ_UNCOMMITTED, min_bytes=1)
    await asyncio.wait_for(alone.perform(), 5)
    assert not reads[0].size_bytes and reads[0].is_kept_out


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_fetch_does_not_wait_for_a_slow_store_once_for_each_partition(
    is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client would give up, and ask for the same again. The next fetch reads the rest."""
    monkeypatch.setattr(fetching, "_COLD_S", 0.01)
    reads: list[PartitionRead] = []
    for kind in (ColdReads, ColdReads, PartitionRead):
        partition = SteppedPartition()
        partition.append(b"x")
        partition.settle()
        reads.append(kind(partition.log, 0, 1 << 20))
    first, second, hot = reads
    assert isinstance(first, ColdReads)
    first.is_refused = is_refused
    fetch = fetch_of(*reads, isolation=Isolation.READ_UNCOMMITTED, min_bytes=1)
    await asyncio.wait_for(fetch.perform(), 5)
    assert bool(first.error) is is_refused
    assert bool(first.size_bytes) is not is_refused
    # It says where the log ends, as every partition of an answer does.
    assert second.result is not None and second.result.high_watermark == 1
    assert (second.size_bytes, second.is_kept_out) == (0, True)
    assert hot.size_bytes


@pytest.mark.parametrize("isolation", Isolation)
async def test_nobody_waits_for_more_beside_a_batch_that_finds_no_room(
    isolation: Isolation,
) -> None:
    small, large = SteppedPartition(), SteppedPartition()
    small.append(b"x")
    large.append(bytes(1_000))
    small.settle()
    large.settle()
    reads = [PartitionRead(small.log, 0, 500), PartitionRead(large.log, 0, 500)]
    await asyncio.wait_for(fetch_of(*reads, isolation=isolation, min_bytes=600).perform(), 5)
    assert reads[0].size_bytes and not reads[1].size_bytes
    reads = [PartitionRead(large.log, 0, 500), PartitionRead(small.log, 0, 500)]
    await asyncio.wait_for(fetch_of(*reads, isolation=isolation, min_bytes=600).perform(), 5)
    assert reads[0].size_bytes > 1_000


async def test_ends_of_transactions_are_counted_and_not_read_before_they_are_enough() -> None:
    partition = SteppedPartition()
    read = CountedReads(partition.log, 0, 1 << 20)
    size = len(batch_of(bytes(200), producer_id=7, epoch=0, sequence=0, transactional=True))
    fetch = fetch_of(read, isolation=Isolation.READ_COMMITTED, min_bytes=20 * size)
    task = await waiting(fetch)
    for number in range(20):
        partition.append(bytes(200), producer_id=7, epoch=0, sequence=number, transactional=True)
        partition.end(7, commit=True)
        partition.settle()
        for _ in range(3):
            await asyncio.sleep(0)
        if task.done():
            break
    await asyncio.wait_for(task, 5)
    assert read.size_bytes >= 20 * size
    assert read.count == 2


async def test_an_open_transaction_is_waited_for_and_the_high_watermark_told_at_the_end() -> None:
    partition = SteppedPartition()
    read = CountedReads(partition.log, 0, 1 << 20)
    fetch = fetch_of(read, isolation=Isolation.READ_COMMITTED, min_bytes=1, max_wait_ms=100)
    task = await waiting(fetch)
    partition.append(b"x", producer_id=7, epoch=0, sequence=0, transactional=True)
    partition.settle()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done() and read.count == 1
    await asyncio.wait_for(task, 5)
    assert read.result is not None
    assert (read.result.high_watermark, read.result.last_stable_offset) == (1, 0)


async def test_a_fetch_of_many_partitions_lets_others_have_their_turns() -> None:
    partition = SteppedPartition()
    partition.append(b"x")
    partition.settle()
    reads = [PartitionRead(partition.log, 0, 1 << 20) for _ in range(3_000)]
    fetch = fetch_of(*reads, isolation=Isolation.READ_UNCOMMITTED, min_bytes=1)
    task = asyncio.create_task(fetch.perform())
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 3
    assert all(read.result is not None for read in reads)


def idle_fetch(
    partition: SteppedPartition, go_on: Callable[[], Coroutine[Any, Any, FetchResponse]]
) -> DelayedResponse:
    loop = asyncio.get_running_loop()
    watch = FetchWatch([("t", 0)])
    watch.settle(("t", 0), partition.log.reader)
    nothing = partial(FetchResponse, session_id=7)
    idle = IdleFetch(watch, SharedTimers(loop), loop.time() + 0.05, go_on, nothing)
    assert idle.response is not None
    return idle.response


async def test_an_idle_fetch_is_no_task_before_a_partition_moves() -> None:
    partition = SteppedPartition()
    ended = asyncio.Event()

    async def go_on() -> FetchResponse:
        return FetchResponse(session_id=1)

    response = idle_fetch(partition, go_on)
    DelayedResponses(asyncio.get_running_loop()).begin(response, ended.set)
    before = asyncio.all_tasks()
    partition.append(b"x")
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    partition.settle()
    await asyncio.wait_for(ended.wait(), 5)
    assert response.make(False) == FetchResponse(session_id=1)


async def test_idle_fetches_end_in_time_and_at_once_when_their_client_goes() -> None:
    partition, loop = SteppedPartition(), asyncio.get_running_loop()
    delayed, ended = DelayedResponses(loop), [asyncio.Event() for _ in range(3)]

    async def go_on() -> FetchResponse:
        raise AssertionError("nothing has moved")

    responses = [idle_fetch(partition, go_on) for _ in ended]
    began_at_s = loop.time()
    for response, event in zip(responses, ended, strict=True):
        delayed.begin(response, event.set)
    # They have a timer of their own: no look at time limits passes thousands of them.
    assert not delayed.waiting
    responses[0].cancel()
    assert ended[0].is_set() and not ended[1].is_set()
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in ended)), 5)
    assert loop.time() - began_at_s >= 0.049
    assert responses[1].make(False) == FetchResponse(session_id=7)


async def test_an_idle_fetch_leaves_no_work_to_the_garbage_collection() -> None:
    partition, ended = SteppedPartition(), asyncio.Event()

    async def go_on() -> FetchResponse:
        raise AssertionError("nothing has moved")

    response = idle_fetch(partition, go_on)
    DelayedResponses(asyncio.get_running_loop()).begin(response, ended.set)
    await asyncio.wait_for(ended.wait(), 5)
    gone = weakref.ref(response.make.__self__)  # type: ignore[attr-defined]  # a bound method
    assert response.make(False) == FetchResponse(session_id=7)
    gc.disable()
    try:
        del response
        assert gone() is None
    finally:
        gc.enable()


async def test_a_fetch_that_is_cancelled_while_it_reads_leaves_no_work_to_collections() -> None:
    partition, ended = SteppedPartition(), asyncio.Event()
    known: list[object] = []

    async def go_on() -> FetchResponse:
        idle = known.pop()  # As its context knows it, to give way.
        await asyncio.Event().wait()
        raise AssertionError(idle)

    response = idle_fetch(partition, go_on)
    DelayedResponses(asyncio.get_running_loop()).begin(response, ended.set)
    known.append(response.make.__self__)  # type: ignore[attr-defined]  # a bound method
    gone = weakref.ref(known[0])
    partition.append(b"x")
    partition.settle()
    await asyncio.sleep(0.01)
    gc.disable()
    try:
        response.cancel()
        assert response.made() is None
        del response
        await asyncio.sleep(0.01)
        assert gone() is None
    finally:
        gc.enable()


async def test_a_refused_fetch_leaves_no_work_to_the_garbage_collection() -> None:
    def find(key: PartitionKey) -> PartitionRead:
        try:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {key}")
        except KafkaError as refusal:
            return PartitionRead.refused(refusal)

    loop = asyncio.get_running_loop()
    fetch = Fetch(
        FetchWatch([("t", 0), ("t", 1)]),
        find,
        Isolation.READ_UNCOMMITTED,
        SharedTimers(loop),
        Turns(),
        min_bytes=1,
        max_bytes=1 << 20,
        ends_at_s=loop.time(),
        held=HeldResponse(ResponseMemory(-1)),
    )
    await fetch.perform()
    fetch.end()
    gone = weakref.ref(fetch)
    gc.disable()
    try:
        del fetch
        assert gone() is None
    finally:
        gc.enable()


def test_a_read_whose_first_batch_is_damaged_waits_for_no_more() -> None:
    read = PartitionRead(None, 0, 1000)
    read.result, read.size_bytes = Slice(memoryview(bytes(100)), 0, 0, 0, None), 100
    assert read.is_cut_short(Isolation.READ_UNCOMMITTED)
