"""Descriptions that take much memory, or long: how they are made beside others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.broker import Broker
from tests.magnetar.conftest import RawClient
from wire.messages import describe_configs, describe_log_dirs
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
    async with broker.services.turns.large_response:
        large.send(many, 4)
        await small.ask(few, 4, describe_configs.DescribeConfigsResponse)
        receiving = asyncio.create_task(large.receive())
        for _ in range(3):
            await small.ask(few, 4, describe_configs.DescribeConfigsResponse)
        assert not receiving.done()
    await receiving
    assert not broker.services.turns.large_response.locked()


async def test_the_sizes_of_many_logs_are_told_in_turns(
    broker: Broker, client: RawClient, given_up: list[None]
) -> None:
    broker.topics.create("many", 4000)
    request = describe_log_dirs.DescribeLogDirsRequest(topics=None)
    answer = await client.ask(request, 4, describe_log_dirs.DescribeLogDirsResponse)
    (directory,) = answer.results
    (topic,) = (topic for topic in directory.topics if topic.name == "many")
    assert [each.partition_index for each in topic.partitions] == list(range(4000))
    # Pieces of 256, of which two may have one turn.
    assert len(given_up) >= 6
