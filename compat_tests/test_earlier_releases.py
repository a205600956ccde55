"""`as_version`: every client library goes on with the versions that an earlier release served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from magnetar.testing import Broker, start_broker

TIMEOUT_S = 60


@pytest.fixture(scope="module", params=["2.8", "3.9"])
def earlier(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with start_broker(as_version=request.param) as broker:
        yield broker


def confluent(broker: Broker, topic: str) -> bytes | None:
    producer = Producer({**broker.confluent_settings(), "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"confluent")
    producer.commit_transaction(TIMEOUT_S)
    settings = {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**broker.confluent_settings(), **settings})
    consumer.subscribe([topic])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    assert message is not None
    value: bytes | None = message.value()
    return value


def kafka_python(broker: Broker, topic: str) -> bytes | None:
    producer = KafkaProducer(**broker.kafka_python_settings())
    producer.send(topic, b"kafka-python").get(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", **broker.kafka_python_settings()
    )
    value: bytes | None = next(consumer).value
    consumer.close()
    return value


def aiokafka(broker: Broker, topic: str) -> bytes | None:
    async def exchange() -> bytes | None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait(topic, b"aiokafka")
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=topic,
            auto_offset_reset="earliest",
        ) as consumer:
            value: bytes | None = (await consumer.getone()).value
            return value

    return asyncio.run(exchange())


@pytest.mark.parametrize("exchange", [confluent, kafka_python, aiokafka])
def test_clients_write_and_read_on_an_earlier_release(
    earlier: Broker, exchange: Callable[[Broker, str], bytes | None]
) -> None:
    topic = earlier.topic()
    with earlier.requests() as seen:
        assert exchange(earlier, topic) == exchange.__name__.replace("_", "-").encode()
    assert all(each.error != "UNSUPPORTED_VERSION" for each in seen if each.api != "ApiVersions")
    assert {"Produce", "Fetch", "JoinGroup"} <= set(seen.apis)
