"""Administrative steps the tests need, through confluent-kafka's AdminClient."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

_TIMEOUT_S = 20.0


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait until it can be used; in config names underscores stand for dots."""
    named = {key.replace("_", "."): value for key, value in (configs or {}).items()}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=named)
    for future in admin.create_topics([new], operation_timeout=10).values():
        future.result(timeout=_TIMEOUT_S)
    _await_leaders(bootstrap, topic, partitions)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([topic], operation_timeout=10).values():
        future.result(timeout=_TIMEOUT_S)


def _await_leaders(bootstrap: str, topic: str, partitions: int) -> None:
    """Kafka answers CreateTopics before the partitions have their leader."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})
    deadline = time.monotonic() + _TIMEOUT_S
    waiting = list(range(partitions))
    while waiting:
        try:
            client.get_watermark_offsets(TopicPartition(topic, waiting[-1]), timeout=_TIMEOUT_S)
            waiting.pop()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    client.close()
