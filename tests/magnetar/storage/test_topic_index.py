"""Topics are found by name and id, in order; and names that are taken are refused."""

from __future__ import annotations

import pytest

from magnetar.broker import Broker
from wire.error_code import ErrorCode
from wire.errors import KafkaError


async def test_names_that_differ_by_dot_and_underscore_collide(broker: Broker) -> None:
    broker.topics.create("a.b")
    with pytest.raises(KafkaError) as refused:
        broker.topics.create("a_b")
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    broker.topics.create("ab")


async def test_a_topic_is_found_by_name_and_id(broker: Broker) -> None:
    topic = broker.topics.create("a", 3, 1, {"retention.ms": "5"})
    assert broker.topics.by_name("a") is topic
    assert broker.topics.by_id(topic.id) is topic
    assert topic.replication_factor == 1
    assert topic.settings.retention_ms == 5
    assert broker.topics.partition("a", 2).partition == 2
    for name, index in (("a", 3), ("a", -1), ("b", 0)):
        with pytest.raises(KafkaError) as refused:
            broker.topics.partition(name, index)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_topics_are_sorted_again_only_where_some_have_come_or_gone(broker: Broker) -> None:
    second = broker.topics.create("b", 1)
    found = broker.topics.all()
    assert broker.topics.all() is found
    first = broker.topics.create("a", 1)
    assert (found, broker.topics.all()) == ([second], [first, second])
    await broker.topics.deletion.perform([second])
    assert broker.topics.all() == [first]
