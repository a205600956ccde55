"""Metadata that creates the topics it names: as many as CreateTopics may, and beside others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from magnetar.broker import Broker
from magnetar.runtime import auto_creation
from tests.magnetar.conftest import RawClient
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

Connect = Callable[[Broker], Awaitable[RawClient]]


def asking_for(*names: str) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=True)


async def codes(client: RawClient, *names: str) -> list[int]:
    answer = await client.ask(asking_for(*names), 9, MetadataResponse)
    return [each.error_code for each in answer.topics]


async def test_one_request_creates_no_more_than_create_topics_may(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand names took minutes, and half a gigabyte."""
    monkeypatch.setattr(auto_creation, "PARTITIONS_MAX", 2)
    later = ErrorCode.LEADER_NOT_AVAILABLE
    assert await codes(client, "a", "b", "c", "d") == [0, 0, later, later]
    # Clients ask again, and get what they want.
    assert await codes(client, "a", "b", "c", "d") == [0, 0, 0, 0]


async def test_a_topic_is_created_while_others_are_served(
    broker: Broker, client: RawClient, connect: Connect, catalog_is_free: asyncio.Event
) -> None:
    client.send(asking_for("slow"), 9)
    other = await connect(broker)
    assert not (await other.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code
    # Not found before the disk has it; a second client is not kept for long.
    assert broker.topics.by_name("slow") is None
    assert await codes(other, "slow") == [ErrorCode.LEADER_NOT_AVAILABLE]
    catalog_is_free.set()
    await client.receive()
    assert await codes(other, "slow") == [0]


async def test_two_clients_that_ask_at_once_both_find_the_topic(
    broker: Broker, client: RawClient, connect: Connect
) -> None:
    other = await connect(broker)
    answers = await asyncio.gather(codes(client, "new"), codes(other, "new"))
    assert list(answers) == [[0], [0]]


async def test_what_collides_is_refused_until_the_other_is_gone(broker: Broker) -> None:
    names = broker.topics.index
    await broker.topics.create_in_turns(broker.topics.new_row("a.b", 1, 1, {}))
    with pytest.raises(KafkaError, match=r"'a_b' collides with existing topic: a\.b"):
        names.check_free("a_b")
    await broker.topics.deletion.perform(
        [topic for topic in broker.topics.all() if topic.name == "a.b"]
    )
    names.check_free("a_b")
