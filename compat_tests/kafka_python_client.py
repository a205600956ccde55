"""kafka-python."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from compat_tests.client import TIMEOUT_S, Client, Isolation, Pair, Read, StuckClient, Writing


def producer(bootstrap: str, **settings: Any) -> KafkaProducer:
    defaults = {"bootstrap_servers": bootstrap, "acks": "all", "linger_ms": 2}
    return KafkaProducer(**{**defaults, **settings})


def consumer(bootstrap: str, **settings: Any) -> KafkaConsumer:
    """Return a consumer that starts at the earliest offset and commits only when told."""
    defaults = {
        "bootstrap_servers": bootstrap,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 60_000,
    }
    return KafkaConsumer(**{**defaults, **settings})


def subscribe(client: KafkaConsumer, topic: str) -> None:
    """Subscribe, and know the partitions before the first join: a leader that knows none assigns
    nothing, and one that learns of them while it joins may never send a heartbeat again.

    Asking for an offset makes this topic's known; `partitions_for_topic` would fetch those of all
    topics, which keeps the client busy for seconds where there are thousands.
    """
    client.subscribe([topic])
    client.end_offsets([TopicPartition(topic, 0)])


def send(client: KafkaProducer, topic: str, pairs: Sequence[Pair], partition: int = 0) -> list[int]:
    """Produce `pairs`, wait for all of them, return their offsets; an error of one is raised."""
    futures = [client.send(topic, value, key, partition=partition) for key, value in pairs]
    client.flush(TIMEOUT_S)
    return [future.get(timeout=TIMEOUT_S).offset for future in futures]


class KafkaPythonClient(Client):
    name = "kafka-python"

    def _write(self, bootstrap: str, topic: str, pairs: Sequence[Pair], writing: Writing) -> None:
        client = producer(
            bootstrap,
            compression_type=None if writing.codec == "none" else writing.codec,
            enable_idempotence=writing.is_idempotent,
            transactional_id=writing.transactional_id,
        )
        try:
            if writing.transactional_id is None:
                send(client, topic, pairs)
                return
            client.init_transactions()
            client.begin_transaction()
            send(client, topic, pairs)
            if writing.commits:
                client.commit_transaction()
            else:
                client.abort_transaction()
        finally:
            client.close(timeout=5)

    def consume(
        self, bootstrap: str, topic: str, isolation: Isolation = "read_committed"
    ) -> list[Read]:
        client = consumer(bootstrap, isolation_level=isolation)
        partition = TopicPartition(topic, 0)
        found: list[Read] = []
        try:
            client.assign([partition])
            client.seek_to_beginning(partition)
            end = client.end_offsets([partition])[partition]
            deadline = time.monotonic() + TIMEOUT_S
            while client.position(partition) < end:
                for records in client.poll(timeout_ms=200).values():
                    found += [Read(each.offset, each.key, each.value) for each in records]
                if time.monotonic() > deadline:
                    raise StuckClient(f"at {client.position(partition)} of {topic}, end {end}")
        finally:
            client.close()
        return [read for read in found if read.offset < end]
