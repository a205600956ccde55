"""CreateTopics that is sent again while the first is still at work, and one of many topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from magnetar.broker import Broker
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from wire.error_code import ErrorCode
from wire.errors import KafkaError
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


def asked(name: str) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=1, replication_factor=1)


async def test_many_topics_are_made_by_few_transactions_and_each_is_refused_alone(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions: list[int] = []
    add_topics = Catalog.add_topics

    def counted(self: Catalog, topics: Sequence[TopicRow]) -> set[str]:
        transactions.append(len(topics))
        if any(row.name == "unstorable" for row in topics):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a text that the database cannot keep")
        return add_topics(self, topics)

    names = [f"t-{number}" for number in range(200)]
    refused = {
        "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "there": ErrorCode.TOPIC_ALREADY_EXISTS,
        "unstorable": ErrorCode.INVALID_REQUEST,
    }
    broker.topics.ensure("there")
    monkeypatch.setattr(Catalog, "add_topics", counted)
    client = await connect(broker)
    # "a_b" collides with a topic of the same request.
    topics = [asked(name) for name in (*names, "a.b", *refused)]
    answer = await client.ask(CreateTopicsRequest(topics=topics), 7, CreateTopicsResponse)
    assert [each.name for each in answer.topics] == [each.name for each in topics]
    codes = {each.name: each.error_code for each in answer.topics}
    assert codes == dict.fromkeys([*names, "a.b"], ErrorCode.NONE) | refused
    assert {topic.name for topic in broker.topics.all()} == {*names, "a.b", "there"}
    # And one for each of those beside the refused one.
    assert len([count for count in transactions if count > 1]) <= 4


async def test_two_requests_that_make_the_same_topics_in_another_order_end(
    broker: Broker, connect: Connect
) -> None:
    names = [f"t-{number}" for number in range(150)]
    clients = [await connect(broker), await connect(broker)]
    requests = [
        CreateTopicsRequest(topics=[asked(name) for name in ordered])
        for ordered in (names, names[::-1])
    ]
    async with asyncio.timeout(30):
        answers = await asyncio.gather(
            *(
                client.ask(request, 7, CreateTopicsResponse)
                for client, request in zip(clients, requests, strict=True)
            )
        )
    codes: dict[str, list[int]] = {}
    for answer in answers:
        for each in answer.topics:
            codes.setdefault(each.name, []).append(each.error_code)
    assert set(codes) == set(names)
    for each in codes.values():
        assert sorted(each) == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
