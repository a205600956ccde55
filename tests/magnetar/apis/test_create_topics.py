"""CreateTopics that is sent again while the first is still at work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.broker import Broker
from wire.error_code import ErrorCode
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

Connect = Callable[[Broker], Awaitable[Any]]


async def test_a_topic_that_is_told_to_exist_is_found(
    broker: Broker, connect: Connect, catalog_is_free: asyncio.Event
) -> None:
    topic = CreatableTopic(name="a", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic])
    lost, retrying = await connect(broker), await connect(broker)
    creations = [
        asyncio.ensure_future(each.ask(request, 7, CreateTopicsResponse))
        for each in (lost, retrying)
    ]
    done, _ = await asyncio.wait(creations, timeout=0.1)
    catalog_is_free.set()
    assert not done, "the topic is in no catalog yet"
    codes = [(await each).topics[0].error_code for each in creations]
    assert sorted(codes) == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
