"""A fetch that waits is woken by what becomes visible, also by what was appended before it came."""

from __future__ import annotations

import asyncio

import pytest

from logstore.partition.reader import Isolation
from magnetar.runtime.fetching import Fetch, PartitionRead
from magnetar.runtime.response_memory import HeldResponse, ResponseMemory
from tests.logstore.partitions import SteppedPartition, batch_of


async def waiting(fetch: Fetch) -> asyncio.Task[None]:
    """Start the fetch; it has read and sleeps when this returns."""
    task = asyncio.create_task(fetch.perform())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


def fetch_of(*reads: PartitionRead, isolation: Isolation, min_bytes: int) -> Fetch:
    return Fetch(
        reads,
        isolation,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        max_wait_ms=60_000,
        held=HeldResponse(ResponseMemory(-1)),
    )


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
