"""Descriptions that take much memory, or long: how they are made beside others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from logstore.partition.producer_state import ProducerState
from magnetar.broker import Broker
from magnetar.runtime.turns import Turns
from magnetar.storage.leaders import local
from tests.magnetar.conftest import RawClient
from wire.message import Message
from wire.messages import (
    describe_client_quotas,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    elect_leaders,
    list_config_resources,
)
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


async def test_the_resources_with_configs_are_listed_in_turns(
    broker: Broker, client: RawClient, given_up: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred such requests at once, of 2,000 topics each, held the event loop for 237 ms."""
    names = [f"group-{number}" for number in range(4000)]
    stored = broker.services.config_resources.stored
    monkeypatch.setattr(type(stored), "names", lambda *_: names)
    request = list_config_resources.ListConfigResourcesRequest(resource_types=[ResourceType.GROUP])
    answer = await client.ask(request, 1, list_config_resources.ListConfigResourcesResponse)
    assert [each.resource_name for each in answer.config_resources] == names
    assert len(given_up) >= 6


@pytest.mark.parametrize(
    "request_",
    [
        list_config_resources.ListConfigResourcesRequest(resource_types=[ResourceType.TOPIC]),
        describe_client_quotas.DescribeClientQuotasRequest(),
        elect_leaders.ElectLeadersRequest(topic_partitions=None),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_what_lists_all_that_there_is_waits_for_its_turn_before(
    request_: Message, broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies of 2,000 quotas for two hundred requests took 40 MB, and 95 ms in one step."""
    listed: list[None] = []

    def list_all() -> list[Any]:
        listed.append(None)
        return []

    for owner in (broker.topics, broker.services.client_quotas):
        monkeypatch.setattr(owner, "all", list_all)
    turns = broker.services.turns
    begun = asyncio.Event()

    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(type(turns), "is_over", lambda _: True)
    monkeypatch.setattr(type(turns), "give_up", lambda _: never())
    client.send(request_, 1)
    async with asyncio.timeout(30):
        await begun.wait()
    assert not listed


async def test_a_producer_that_is_forgotten_while_others_are_described_is_left_out(
    client: RawClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = local(broker.topics.ensure("t").partitions)[0]
    for producer_id in range(1_000):
        log.producers[producer_id] = ProducerState(0)
    give_up = Turns.give_up

    async def forgotten(self: Turns) -> None:
        log.producers.pop(999, None)
        await give_up(self)

    monkeypatch.setattr(Turns, "is_over", lambda self: True)
    monkeypatch.setattr(Turns, "give_up", forgotten)
    request = describe_producers.DescribeProducersRequest(
        topics=[describe_producers.TopicRequest(name="t", partition_indexes=[0])]
    )
    described = await client.ask(request, 0, describe_producers.DescribeProducersResponse)
    found = described.topics[0].partitions[0].active_producers
    assert [each.producer_id for each in found] == [*range(999)]
