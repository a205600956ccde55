"""Descriptions that take much memory: how many of them are made at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.broker import Broker
from tests.magnetar.conftest import RawClient
from wire.messages import describe_configs
from wire.resource_type import ResourceType

Connect = Callable[[Broker], Awaitable[RawClient]]


async def test_large_descriptions_of_configs_are_made_one_at_a_time(
    broker: Broker, connect: Connect
) -> None:
    """Eight requests of 100 KB, each naming one topic 20,000 times, made gigabytes in turns."""
    broker.topics.ensure("t")
    many, few = (
        describe_configs.DescribeConfigsRequest(
            resources=[
                describe_configs.DescribeConfigsResource(
                    resource_type=ResourceType.TOPIC,
                    resource_name="t",
                    configuration_keys=["retention.ms"],
                )
            ]
            * count
        )
        for count in (1_000, 10)
    )
    large, small = await connect(broker), await connect(broker)
    async with broker.services.turns.large:
        large.send(many, 4)
        await small.ask(few, 4, describe_configs.DescribeConfigsResponse)
        receiving = asyncio.create_task(large.receive())
        for _ in range(3):
            await small.ask(few, 4, describe_configs.DescribeConfigsResponse)
        assert not receiving.done()
    await receiving
    assert not broker.services.turns.large.locked()
