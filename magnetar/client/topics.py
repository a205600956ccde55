"""Topics: list and describe them, create them, add partitions, delete them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.configs import Resource, describe_configs
from magnetar.client.errors import ClientError, check
from magnetar.client.log_dirs import partition_sizes
from magnetar.client.partitions import EARLIEST, bounds, list_offsets
from wire.error_code import ErrorCode
from wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from wire.resource_type import ResourceType
from wire.types import uuid_text

#: From this version on topics may be named by id, so names moved to another field (KIP-516).
_TOPIC_STATES_SINCE = 6
_PATTERN = "^"


@dataclass(frozen=True)
class Partition:
    """A partition with its offsets and size; -1 where no broker answered for it."""

    partition: int
    leader: int
    replicas: Sequence[int]
    in_sync_replicas: Sequence[int]
    log_start_offset: int = -1
    last_stable_offset: int = -1
    """Exclusive: read_committed readers see the records below."""
    high_watermark: int = -1
    size_bytes: int = -1


@dataclass(frozen=True)
class Topic:
    """A topic as its cluster describes it."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: list[Partition]
    configs: dict[str, str | None] = field(default_factory=dict)
    """Settings of the topic itself, filled in by `describe_topics` alone."""

    def to_json(self, *, detailed: bool) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "topic": self.name,
            "topic_id": self.topic_id,
            "internal": self.is_internal,
            "replication_factor": self.replication_factor,
        }
        if not detailed:
            return {**shown, "partitions": len(self.partitions)}
        return {
            **shown,
            "configs": self.configs,
            "partitions": [asdict(each) for each in self.partitions],
        }

    @property
    def replication_factor(self) -> int:
        return max((len(each.replicas) for each in self.partitions), default=0)


def list_topics(client: Client, names: Iterable[str] | None = None) -> list[Topic]:
    """Return the topics (`names` None: all) by name, without offsets. Refused: one is unknown."""
    found = []
    for topic in client.metadata(names).topics:
        check(topic.error_code, f"topic {topic.name}")
        partitions = [
            Partition(each.partition_index, each.leader_id, each.replica_nodes, each.isr_nodes)
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        ]
        name = topic.name or ""
        found.append(Topic(name, uuid_text(topic.topic_id), topic.is_internal, partitions))
    return sorted(found, key=lambda topic: topic.name)


def asked_leaders(client: Client, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
    """Return the partitions of listed topics with their leaders, those that are asked."""
    return {
        (topic.name, each.partition): each.leader
        for topic in topics
        for each in topic.partitions
        if client.asks(each.leader)
    }


def matching(client: Client, names: Sequence[str]) -> list[str]:
    """Return the names, and in place of each `^PATTERN` the topics whose names begin to match it.

    So librdkafka reads the names of a subscription. Internal topics match none.
    ClientError: a pattern matches no topic, or is no regular expression.
    """
    if not any(name.startswith(_PATTERN) for name in names):
        return list(names)
    every = [topic.name for topic in list_topics(client) if not topic.is_internal]
    found: dict[str, None] = {}
    for name in names:
        try:
            matched = (
                [each for each in every if re.match(name, each)]
                if name.startswith(_PATTERN)
                else [name]
            )
        except re.error as error:
            raise ClientError(f"{name!r} is no regular expression: {error}.") from None
        if not matched:
            raise ClientError(f"no topic matches {name!r}: `magnetar topics list` shows them.")
        found |= dict.fromkeys(matched)
    return list(found)


def describe_topics(client: Client, names: Sequence[str] | None) -> list[Topic]:
    """Return the topics (`names` None: all) with offsets, sizes and their own settings."""
    topics = list_topics(client, names)
    sizes = partition_sizes(client, asked_leaders(client, topics))
    return with_offsets(client, topics, sizes, own_configs(client, [each.name for each in topics]))


def with_offsets(
    client: Client,
    topics: Sequence[Topic],
    sizes: Mapping[TopicPartition, int],
    configs: Mapping[str, dict[str, str | None]],
) -> list[Topic]:
    """Ask for the offsets of listed topics; return the topics with them, and with these sizes and
    own settings."""
    leaders = asked_leaders(client, topics)
    starts = list_offsets(client, leaders, leaders, EARLIEST)
    stable, ends = bounds(client, leaders, leaders.keys())

    def described(topic: str, partition: Partition) -> Partition:
        place = topic, partition.partition
        return replace(
            partition,
            log_start_offset=starts.get(place, -1),
            last_stable_offset=stable.get(place, -1),
            high_watermark=ends.get(place, -1),
            size_bytes=sizes.get(place, -1),
        )

    return [
        replace(
            topic,
            partitions=[described(topic.name, each) for each in topic.partitions],
            configs=configs.get(topic.name, {}),
        )
        for topic in topics
    ]


def create_topic(
    client: Client,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
    if_not_exists: bool = False,
    validate_only: bool = False,
) -> bool:
    """Create a topic. Return False if the topic exists and `if_not_exists` allows that.

    -1 for partitions or replication factor: the broker's default.
    """
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[
            CreatableTopicConfig(name=each, value=value) for each, value in (configs or {}).items()
        ],
    )
    request = CreateTopicsRequest(
        topics=[topic], timeout_ms=client.timeout_ms, validate_only=validate_only
    )
    (result,) = client.call(request, CreateTopicsResponse).topics
    # Created and accepted alike: looking first would race with another creator.
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
        return False
    check(result.error_code, f"topic {name}", result.error_message)
    return True


def add_partitions(client: Client, name: str, partitions: int) -> None:
    """Raise a topic's number of partitions to `partitions`."""
    topic = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=client.timeout_ms)
    (result,) = client.call(request, CreatePartitionsResponse).results
    check(result.error_code, f"topic {name}", result.error_message)


def delete_topics(client: Client, names: Sequence[str], *, if_exists: bool) -> list[str]:
    """Delete topics and return the names of the deleted ones. Refused for the first that stays.

    With `if_exists`, a topic that does not exist is no error.
    """
    request = DeleteTopicsRequest(timeout_ms=client.timeout_ms)
    if client.version_for(DeleteTopicsRequest) >= _TOPIC_STATES_SINCE:
        request.topics = [DeleteTopicState(name=name) for name in names]
    else:
        request.topic_names = list(names)
    deleted = []
    refused = []
    for result in client.call(request, DeleteTopicsResponse).responses:
        if result.error_code == ErrorCode.NONE:
            deleted.append(result.name or "")
        elif result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not if_exists:
            refused.append(result)
    # The broker deletes each topic by itself, so a refusal does not undo the others: the message
    # names them.
    for result in refused:
        what = f"topic {result.name}"
        if deleted:
            what = f"deleted {', '.join(sorted(deleted))}, but not {what}"
        check(result.error_code, what, result.error_message)
    return sorted(deleted)


def own_configs(client: Client, names: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """Return the settings that these topics have of their own, by topic."""
    resources = [Resource(ResourceType.TOPIC, name) for name in names]
    return {
        resource.name: {entry.name: entry.value for entry in entries if entry.is_own}
        for resource, entries in describe_configs(client, resources)
    }
