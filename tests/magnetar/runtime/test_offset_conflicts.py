"""Conflict detection on a whole broker: off by default; on, the second transaction must abort."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from magnetar.broker import Broker
from magnetar.runtime.group_offsets import OffsetQuery
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.raw_producer import RawProducer
from wire.error_code import ErrorCode

Connect = Callable[[Broker], Awaitable[RawClient]]


@pytest.mark.parametrize("durability", ["fsync", "page-cache"])
@pytest.mark.parametrize(
    ("is_on", "version", "told"),
    [
        ("false", 3, ErrorCode.NONE),
        ("true", 3, ErrorCode.ILLEGAL_GENERATION),
        ("true", 4, ErrorCode.TRANSACTION_ABORTABLE),
        ("true", 5, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
async def test_the_same_offset_in_two_transactions(
    start_broker: StartBroker,
    connect: Connect,
    is_on: str,
    version: int,
    told: ErrorCode,
    durability: str,
) -> None:
    settings = {
        "transaction.offset.conflict.detection.enable": is_on,
        "durability": durability,
    }
    broker = await start_broker(settings)
    broker.topics.create("a", 1)
    client = await connect(broker)
    first, second = RawProducer(client, "first"), RawProducer(client, "second")
    assert [await first.init(), await second.init()] == [0, 0]
    assert await first.send_offset("group", 5) == ErrorCode.NONE
    assert await second.send_offset("another group", 6, version) == ErrorCode.NONE
    assert await second.send_offset("group", 6, version) == told
    # The first is not disturbed, and may say another offset; the second goes on after its abort.
    assert await first.send_offset("group", 7) == ErrorCode.NONE
    assert await second.end(commit=False) == ErrorCode.NONE
    assert await first.end(commit=True) == ErrorCode.NONE
    assert await second.send_offset("group", 8, version) == ErrorCode.NONE
    assert await second.end(commit=True) == ErrorCode.NONE
    asked = [OffsetQuery("a", [0])]
    (looked_up,) = await broker.groups.offsets.fetch("group", asked, require_stable=True)
    (found,) = looked_up.fetched()
    assert found.offset == 8


async def test_pending_offsets_conflict_after_a_restart_too(
    start_broker: StartBroker, connect: Connect
) -> None:
    settings = {"transaction.offset.conflict.detection.enable": "true", "durability": "fsync"}
    broker = await start_broker(settings)
    broker.topics.create("a", 1)
    first = RawProducer(await connect(broker), "first")
    assert await first.init() == await first.send_offset("group", 5) == ErrorCode.NONE
    await broker.stop()
    broker = await start_broker(settings)
    second = RawProducer(await connect(broker), "second")
    assert await second.init() == ErrorCode.NONE
    assert await second.send_offset("group", 6, 5) == ErrorCode.TRANSACTION_ABORTABLE
