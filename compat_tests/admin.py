"""Administrative steps the tests need, through confluent-kafka's AdminClient."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.waiting import eventually

_ANSWER_S = 10.0


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait until it can be used; in config names underscores stand for dots."""
    named = {key.replace("_", "."): value for key, value in (configs or {}).items()}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    # As many replicas as the broker makes by default.
    new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=named)
    for future in admin.create_topics([new], operation_timeout=TIMEOUT_S).values():
        future.result(timeout=TIMEOUT_S)
    await_leaders(bootstrap, topic, partitions)


def configure(broker: Broker, *topics: str, **configs: str) -> None:
    """Change configs of topics, and return when their logs obey; underscores stand for dots."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    _alter(broker.bootstrap, topics, named)
    await_obeyed(broker)


def await_obeyed(broker: Broker) -> None:
    """Return when every part of the broker obeys the changes that it describes.

    Kafka describes a change before its logs, and the coordinators of groups, hear of it. It takes
    one after the other, so these are obeyed when a topic that is created behind them is there.
    """
    if broker.kind == "kafka":
        create_topic(broker.bootstrap, f"behind-{uuid.uuid4().hex[:8]}")


def _alter(bootstrap: str, topics: Sequence[str], configs: Mapping[str, str]) -> None:
    """Change configs of topics, and return when they are described so."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    changes = [
        ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries) for topic in topics
    ]
    for future in admin.incremental_alter_configs(changes).values():
        future.result(timeout=TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while not all(_shows(admin, topic, configs) for topic in topics):
        assert time.monotonic() < deadline, f"{topics} are never described with {configs}"


def _shows(admin: AdminClient, topic: str, configs: Mapping[str, str]) -> bool:
    (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    found = described.result(timeout=TIMEOUT_S)
    return all(found[name].value == value for name, value in configs.items())


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic and return when it is gone: Kafka answers before that."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([topic], operation_timeout=TIMEOUT_S).values():
        future.result(timeout=TIMEOUT_S)
    eventually(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics)


def leader_of(bootstrap: str, topic: str, partition: int = 0) -> int:
    """Return the node that leads a partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    leader: int = (
        admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[partition].leader
    )
    return leader


def await_leaders(bootstrap: str, topic: str, partitions: int) -> None:
    """Return when all partitions have their leader: Kafka answers, and starts, before they have."""
    deadline = time.monotonic() + TIMEOUT_S
    waiting = list(range(partitions))
    client = _onlooker(bootstrap)
    while waiting:
        try:
            client.get_watermark_offsets(TopicPartition(topic, waiting[-1]), timeout=_ANSWER_S)
            waiting.pop()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            # It may go on believing what it was told before the topic was there.
            client.close()
            time.sleep(0.02)
            client = _onlooker(bootstrap)
    client.close()


def _onlooker(bootstrap: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})
