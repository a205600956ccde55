"""Administrative steps the tests need, through confluent-kafka's AdminClient."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    """Create a topic; config names may be given with underscores for dots."""
    named = {key.replace("_", "."): value for key, value in (configs or {}).items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=named)
    for future in admin.create_topics([new], operation_timeout=10).values():
        future.result(timeout=20)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([topic], operation_timeout=10).values():
        future.result(timeout=20)
