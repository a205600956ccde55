"""A sector that the disk cannot read: its partition says so, and the broker goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from logstore.disk.descriptors import Buffer, DiskFile
from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from magnetar.broker import Broker
from tests.magnetar.clocks import HandClock
from tests.magnetar.runtime.test_retention import fill
from wire.error_code import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.records import SimpleRecord, build_batch

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]

#: A segment for every batch, so that all but the last are cold after a restart.
ROLLING = {"segment.ms": "1"}


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Parts of paths of files that cannot be read."""
    parts: list[str] = []
    read, read_now = DiskFile.read, DiskFile.read_now

    def check(file: DiskFile) -> None:
        if any(part in file.path for part in parts):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def failing_read(self: DiskFile, size: int, position: int) -> bytes:
        check(self)
        return read(self, size, position)

    def failing_read_now(self: DiskFile, size: int, position: int) -> Buffer | None:
        check(self)
        return read_now(self, size, position)

    monkeypatch.setattr(DiskFile, "read", failing_read)
    monkeypatch.setattr(DiskFile, "read_now", failing_read_now)
    return parts


async def restarted(start_broker: StartBroker, clock: HandClock, **configs: str) -> Broker:
    """A broker with the topics "bad" and "good", nothing of which is in its memory."""
    first = await start_broker({"durability": "page-cache"}, clock=clock)
    for name in ("bad", "good"):
        first.topics.create(name, configs={**ROLLING, **configs})
        await fill(first.topics.partition(name, 0), clock, 6)
    await first.stop()
    return await start_broker({"durability": "page-cache"}, clock=clock)


async def fetched(client: Any, topic: str) -> int:
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(topics=[FetchTopic(topic=topic, partitions=[asked])])
    answer = await client.ask(request, 11, FetchResponse)
    return int(answer.responses[0].partitions[0].error_code)


async def listed(client: Any, topic: str, timestamp: int) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    answer = await client.ask(request, 7, ListOffsetsResponse)
    return int(answer.topics[0].partitions[0].error_code)


async def append(log: PartitionLog, clock: HandClock) -> None:
    batch = build_batch([SimpleRecord(b"k", b"v", clock.ms)])
    await log.durable(log.append(log.check(batch, clock.ms)).end_offset)


async def test_its_readers_get_a_storage_error_and_all_else_goes_on(
    start_broker: StartBroker,
    connect: Connect,
    unreadable: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = HandClock()
    broker = await restarted(start_broker, clock)
    unreadable.append("/bad-0/00000000000000000000")
    client = await connect(broker)
    for _ in range(2):
        assert await fetched(client, "bad") == ErrorCode.KAFKA_STORAGE_ERROR
        assert await listed(client, "bad", 1) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await listed(client, "bad", -3) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await fetched(client, "good") == ErrorCode.NONE
    for name in ("bad", "good"):
        await append(broker.topics.partition(name, 0), clock)
    assert broker.logs.unreadable_reads == 6
    told = [line for line in capsys.readouterr().err.splitlines() if "cannot be read" in line]
    assert len([line for line in told if '"level": "error"' in line]) == 1
    unreadable.clear()
    assert await fetched(client, "bad") == ErrorCode.NONE


async def test_retention_and_the_cleaner_pass_over_it(
    start_broker: StartBroker, unreadable: list[str]
) -> None:
    clock = HandClock()
    broker = await restarted(
        start_broker, clock, **{"cleanup.policy": "compact,delete", "retention.ms": "3000"}
    )
    unreadable.append("/bad-0/")
    clock.ms += 2000
    bad, good = (broker.topics.partition(name, 0) for name in ("bad", "good"))
    await broker.retention.check()
    await broker.cleaner.clean()
    assert bad.log_start_offset == 0 < good.log_start_offset
    assert bad in broker.cleaner.uncleanable and good not in broker.cleaner.uncleanable


async def test_segments_that_are_gone_do_not_hold_up_those_behind_them(
    start_broker: StartBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = HandClock()
    broker = await restarted(start_broker, clock, **{"retention.ms": "3000"})
    bad, good = (broker.topics.partition(name, 0) for name in ("bad", "good"))
    for base_offset in (0, 2):
        (Path(broker.data_dir) / "bad-0" / f"{base_offset:020d}.log").unlink()
    clock.ms += 2000
    await broker.retention.check()
    assert (bad.log_start_offset, good.log_start_offset) == (4, 4)
    assert capsys.readouterr().err.count("a segment cannot be read") == 1


async def test_the_cleaner_leaves_a_log_alone_of_which_a_segment_is_gone(
    start_broker: StartBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = HandClock()
    broker = await restarted(start_broker, clock, **{"cleanup.policy": "compact"})
    bad, good = (broker.topics.partition(name, 0) for name in ("bad", "good"))
    (Path(broker.data_dir) / "bad-0" / f"{2:020d}.log").unlink()
    for _ in range(3):
        await broker.cleaner.clean()
    assert bad in broker.cleaner.uncleanable and good not in broker.cleaner.uncleanable
    assert capsys.readouterr().err.count("is not cleaned any more") == 1


async def test_an_active_segment_that_cannot_be_read_refuses_appends_to_it_alone(
    start_broker: StartBroker, unreadable: list[str]
) -> None:
    clock = HandClock()
    broker = await restarted(start_broker, clock)
    unreadable.append("/bad-0/00000000000000000005.log")
    bad, good = (broker.topics.partition(name, 0) for name in ("bad", "good"))
    before = bad.state.end_offset, bad.ledger.end_offset
    with pytest.raises(Exception, match="cannot be read"):
        await append(bad, clock)
    assert (bad.state.end_offset, bad.ledger.end_offset) == before
    await append(good, clock)
    unreadable.clear()
    await append(bad, clock)


async def test_a_write_that_fails_still_ends_the_broker(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = HandClock()
    failures: list[BaseException] = []
    broker = await start_broker(
        {"durability": "page-cache"}, clock=clock, on_failure=failures.append
    )
    broker.topics.create("a")
    log = broker.topics.partition("a", 0)
    await append(log, clock)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(DiskFile, "write", fail)
        with pytest.raises(StorageFailure):
            await append(log, clock)
    assert failures
