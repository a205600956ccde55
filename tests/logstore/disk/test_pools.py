"""Blocking work is done in pools that do not wait for one another, and that are bounded."""

from __future__ import annotations

import asyncio
import threading

import pytest

from logstore.disk.barriers import in_thread
from logstore.disk.pools import COLD_READS, Pool
from magnetar.runtime.patterns import matching
from wire.error_code import ErrorCode
from wire.errors import KafkaError


async def test_reads_that_hang_stop_no_housekeeping_and_no_patterns() -> None:
    released = threading.Event()
    reads = [asyncio.create_task(COLD_READS.run(released.wait)) for _ in range(40)]
    await asyncio.sleep(0)
    assert COLD_READS.jobs == 40
    done: list[bool] = []
    await asyncio.wait_for(in_thread(lambda: done.append(True)), 10)
    assert done
    assert await asyncio.wait_for(matching("a+", ["aa", "b"]), 10) == {"aa"}
    released.set()
    assert all(await asyncio.gather(*reads))
    assert COLD_READS.jobs == 0


async def test_a_full_pool_refuses_with_a_code_that_clients_retry() -> None:
    released = threading.Event()
    pool = Pool("narrow", 1, 2, ErrorCode.KAFKA_STORAGE_ERROR)
    taken = [asyncio.create_task(pool.run(released.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(KafkaError, match="2 jobs wait in the pool narrow") as refused:
        await pool.run(released.wait)
    assert refused.value.code.retriable
    # A client that has gone leaves its place.
    taken[1].cancel()
    await asyncio.wait([taken[1]])
    assert pool.jobs == 1
    released.set()
    assert await taken[0]
