"""A full disk: clients' records are refused and taken again later; the broker goes on meanwhile."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from logstore.disk.descriptors import Buffer, DiskFile
from logstore.disk.files import DiskFiles
from magnetar.broker import Broker
from tests.magnetar.clocks import HandClock
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]

SETTINGS = {"durability": "fsync", "log.dir.reserve.bytes": "1000"}


@pytest.fixture
def free_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The room on the disk: its last number."""
    free = [1 << 30]
    monkeypatch.setattr(DiskFiles, "free_bytes", lambda self: free[-1])
    return free


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "the disk " in line]


async def test_below_the_reserve_records_are_refused_and_coordinators_go_on(
    start_broker: StartBroker,
    connect: Connect,
    free_bytes: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = HandClock()
    clock.ms = time.time_ns() // 1_000_000
    broker = await start_broker(SETTINGS, clock=clock)
    broker.topics.create("a")
    producer = RawProducer(await connect(broker), "t")
    assert await producer.init() == ErrorCode.NONE
    assert await producer.add() == ErrorCode.NONE
    assert await producer.produce(11) == ErrorCode.NONE
    free_bytes.append(900)
    clock.ms += 1000
    for _ in range(3):
        assert await producer.produce(11, sequence=1) == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.logs.room.refusals == 3
    assert await producer.end(commit=True) == ErrorCode.NONE
    assert await producer.init() == ErrorCode.NONE
    assert await producer.add() == ErrorCode.NONE
    broker.topics.create("b")
    free_bytes.append(1 << 30)
    assert await producer.produce(11) == ErrorCode.NONE
    assert await producer.end(commit=True) == ErrorCode.NONE
    full, again = told(capsys)
    assert '"level": "error"' in full and "log.dir.reserve.bytes" in full
    assert "has room again" in again


async def test_a_write_that_finds_no_room_is_refused_and_told_once(
    start_broker: StartBroker,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = HandClock()
    clock.ms = time.time_ns() // 1_000_000
    broker = await start_broker(SETTINGS, clock=clock)
    broker.topics.create("a")
    producer = RawProducer(await connect(broker), "t")
    await producer.init()
    await producer.add()
    assert await producer.produce(11) == ErrorCode.NONE
    write = DiskFile.write

    def without_room(self: DiskFile, buffers: Sequence[Buffer], position: int) -> None:
        if "/a-0/" in self.path:
            write(self, [bytes(buffers[0])[:30]], position)
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), self.path)
        write(self, buffers, position)

    with monkeypatch.context() as patched:
        patched.setattr(DiskFile, "write", without_room)
        for _ in range(3):
            assert await producer.produce(11, sequence=1) == ErrorCode.KAFKA_STORAGE_ERROR
    clock.ms += 1000
    assert await producer.produce(11, sequence=1) == ErrorCode.NONE
    assert await producer.end(commit=True) == ErrorCode.NONE
    assert len(told(capsys)) == 2
    await broker.stop()
    log = (await start_broker(SETTINGS, clock=clock)).topics.partition("a", 0)
    assert log.log_end_offset == 3


async def test_the_cleaner_waits_for_room(start_broker: StartBroker, free_bytes: list[int]) -> None:
    broker = await start_broker(SETTINGS)
    pace = broker.cleaner._pace
    pace()
    free_bytes.append(499)
    pace._slice_began = 0.0
    with pytest.raises(OSError, match="No space left"):
        pace()
