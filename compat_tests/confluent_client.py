"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from compat_tests.client import (
    TIMEOUT_S,
    TRANSACTION_TIMEOUT_MS,
    Client,
    Isolation,
    Pair,
    Read,
    StuckClient,
    Writing,
)


def producer(bootstrap: str, **settings: Any) -> Producer:
    """Return a Producer; settings by librdkafka's names with underscores for dots."""
    if "transactional_id" in settings:
        settings.setdefault("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS)
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, **named})


def consumer(bootstrap: str, group: str = "unused", **settings: Any) -> Consumer:
    """Return a Consumer that starts at the earliest offset and commits only when told."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    defaults = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    return Consumer({**defaults, **named})


def send(client: Producer, topic: str, pairs: Sequence[Pair], partition: int = 0) -> list[int]:
    """Produce `pairs`, wait for all of them, return their offsets; an error of one is raised."""
    reports: list[Message] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            reports.append(message)
        else:
            errors.append(error)

    for key, value in pairs:
        client.produce(topic, value, key, partition=partition, on_delivery=delivered)
    try:
        left = client.flush(TIMEOUT_S)
    except SystemError as failure:
        # It calls back while it raises, and that is what Python makes of it.
        raise failure.__cause__ or failure from None
    if left:
        raise StuckClient(f"{len(reports)} of {len(pairs)} records acknowledged")
    if errors:
        raise KafkaException(errors[0])
    return [offset for report in reports if (offset := report.offset()) is not None]


class ConfluentClient(Client):
    name = "confluent"

    def _write(self, bootstrap: str, topic: str, pairs: Sequence[Pair], writing: Writing) -> None:
        settings: dict[str, Any] = {"compression_type": writing.codec, "linger_ms": 2}
        if writing.transactional_id is None:
            settings["enable_idempotence"] = writing.is_idempotent
            send(producer(bootstrap, **settings), topic, pairs)
            return
        client = producer(bootstrap, transactional_id=writing.transactional_id, **settings)
        client.init_transactions(TIMEOUT_S)
        client.begin_transaction()
        send(client, topic, pairs)
        if writing.commits:
            client.commit_transaction(TIMEOUT_S)
        else:
            client.abort_transaction(TIMEOUT_S)

    def consume(
        self, bootstrap: str, topic: str, isolation: Isolation = "read_committed"
    ) -> list[Read]:
        client = consumer(bootstrap, isolation_level=isolation, enable_partition_eof=True)
        client.assign([TopicPartition(topic, 0, 0)])
        found: list[Read] = []
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                message = client.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    found.append(_read(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise KafkaException(error)
        finally:
            client.close()
        raise StuckClient(f"{len(found)} records read from {topic}, no end of partition seen")


def _read(message: Message) -> Read:
    key, value = message.key(), message.value()
    offset = message.offset()
    assert offset is not None
    assert not isinstance(key, str)
    assert not isinstance(value, str)
    return Read(offset, key, value)
