"""The brokers' log directories, and the size of each log in them (KIP-113, KIP-827)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.client.cluster import Client, TopicPartition, by_topic
from magnetar.client.errors import check
from wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)


@dataclass(frozen=True)
class LogDir:
    """A directory of one broker.

    `total_bytes` and `usable_bytes` are of the directory's disk; -1: the broker did not say.
    """

    node_id: int
    path: str
    total_bytes: int
    usable_bytes: int
    sizes: Mapping[TopicPartition, int]
    """The size of each replica in the directory, in bytes."""

    @property
    def size_bytes(self) -> int:
        """The size of all its replicas, in bytes."""
        return sum(self.sizes.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "node_id": self.node_id,
            "log_dir": self.path,
            "total_bytes": None if self.total_bytes < 0 else self.total_bytes,
            "usable_bytes": None if self.usable_bytes < 0 else self.usable_bytes,
            "size_bytes": self.size_bytes,
            "partitions": [
                {"topic": topic, "partition": index, "size_bytes": size}
                for (topic, index), size in sorted(self.sizes.items())
            ],
        }


def describe_log_dirs(
    client: Client, wanted: Iterable[TopicPartition] | None = None
) -> list[LogDir]:
    """Return every broker's directories, with the sizes of `wanted` partitions; None: of all."""
    topics = None
    if wanted is not None:
        topics = [
            DescribableLogDirTopic(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(wanted).items()
        ]
    request = DescribeLogDirsRequest(topics=topics)
    found = []
    for node_id in client.node_ids:
        response = client.call(request, DescribeLogDirsResponse, node_id=node_id)
        check(response.error_code, f"the log directories of broker {node_id}")
        for directory in response.results:
            check(directory.error_code, f"log directory {directory.log_dir}")
            sizes = {
                (topic.name, each.partition_index): each.partition_size
                for topic in directory.topics
                for each in topic.partitions
            }
            found.append(
                LogDir(
                    node_id,
                    directory.log_dir,
                    directory.total_bytes,
                    directory.usable_bytes,
                    sizes,
                )
            )
    return found


def partition_sizes(client: Client, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the size on disk, in bytes, of each partition's largest replica."""
    asked = list(wanted)
    sizes: dict[TopicPartition, int] = {}
    for directory in describe_log_dirs(client, asked) if asked else ():
        for place, size in directory.sizes.items():
            # Replicas differ in size while one has yet to fetch or delete. A disk has to hold the
            # largest one.
            sizes[place] = max(sizes.get(place, 0), size)
    return sizes
