"""The APIs that describe and rearrange a cluster, in every version: what is true of one node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker import Broker
from wire.error_code import ErrorCode
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from wire.records import SimpleRecord, build_batch

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]

Page = tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]


#: What Apache Kafka 4.3.1 answers where everything is allowed.
TOPIC_OPERATIONS = 3576


@pytest.fixture
def topics(broker: Broker) -> None:
    """Topics b, c and d of three partitions each."""
    for name in "bcd":
        broker.topics.create(name, 3)


async def page(
    client: Any, names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> Page:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit
    )
    if cursor is not None:
        request.cursor = Cursor(topic_name=cursor[0], partition_index=cursor[1])
    answer = await client.ask(request, 0, DescribeTopicPartitionsResponse)
    found = [
        (topic.name, topic.error_code, [each.partition_index for each in topic.partitions])
        for topic in answer.topics
    ]
    following = answer.next_cursor
    return found, following and (following.topic_name, following.partition_index)


ALL = [("b", 0, [0, 1, 2]), ("c", 0, [0, 1, 2]), ("d", 0, [0, 1, 2])]


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "expected"),
    [
        ("dcb", 2000, None, (ALL, None)),
        ("", 2000, None, (ALL, None)),
        ("bb", 2000, None, (ALL[:1], None)),
        ("bcd", 4, None, ([ALL[0], ("c", 0, [0])], ("c", 1))),
        ("bcd", 0, None, ([("b", 0, [0])], ("b", 1))),
        ("bcd", -1, None, ([("b", 0, [0])], ("b", 1))),
        ("bcd", 3, None, (ALL[:1], ("c", 0))),
        ("bcd", 4, ("c", 1), ([("c", 0, [1, 2]), ("d", 0, [0, 1])], ("d", 2))),
        ("bcd", 4, ("b", 9), ([("b", 0, []), ALL[1], ("d", 0, [0])], ("d", 1))),
        ("", 4, ("b", 2), ([("b", 0, [2]), ALL[1]], ("d", 0))),
        ("", 4, ("bb", 1), ([ALL[1], ("d", 0, [0])], ("d", 1))),
        ("bz", 4, None, ([ALL[0], ("z", 3, [])], None)),
        ("bz", 4, ("z", 0), ([("z", 3, [])], None)),
        ("b ", 4, None, ([(" ", 17, []), ALL[0]], None)),
        ("bd", 4, ("c", 2), ([("b", 42, []), ("d", 42, [])], None)),
        ("bc", 4, ("c", -1), ([("b", 42, []), ("c", 42, [])], None)),
    ],
)
@pytest.mark.usefixtures("topics")
async def test_topics_are_described_page_by_page(
    client: Any, names: str, limit: int, cursor: tuple[str, int] | None, expected: Page
) -> None:
    assert await page(client, names, limit, cursor) == expected


async def test_the_broker_bounds_a_page(start_broker: StartBroker, connect: Connect) -> None:
    broker = await start_broker({"max.request.partition.size.limit": "2"})
    broker.topics.create("b", 3)
    assert await page(await connect(broker), "b") == ([("b", 0, [0, 1])], ("b", 2))


async def test_a_partition_is_described(broker: Broker, client: Any) -> None:
    topic = broker.topics.create("b")
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="b")])
    (described,) = (await client.ask(request, 0, DescribeTopicPartitionsResponse)).topics
    assert described.topic_id == topic.id
    assert described.topic_authorized_operations == TOPIC_OPERATIONS
    (partition,) = described.partitions
    node = broker.node_id
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (
        node,
        [node],
        [node],
    )
    assert (partition.leader_epoch, partition.offline_replicas) == (broker.epoch, [])


@pytest.mark.parametrize("version", range(1, 6))
async def test_log_directories_are_described(
    start_broker: StartBroker, connect: Connect, tmp_path: Path, version: int
) -> None:
    broker = await start_broker({"durability": "page-cache"})
    topic = broker.topics.create("b", 2)
    broker.topics.create("c")
    batch = build_batch([SimpleRecord(b"k", b"v", broker.clock.now_ms())])
    log = topic.local[1]
    log.append(log.check(batch, broker.clock.now_ms()))
    client = await connect(broker)
    request = DescribeLogDirsRequest(topics=None)
    (result,) = (await client.ask(request, version, DescribeLogDirsResponse)).results
    assert (result.log_dir, result.error_code) == (str(tmp_path / "data"), 0)
    sizes = {
        (each.name, partition.partition_index): partition.partition_size
        for each in result.topics
        for partition in each.partitions
    }
    assert sizes == {("b", 0): 0, ("b", 1): len(batch), ("c", 0): 0}
    if version >= 4:
        assert 0 < result.usable_bytes < result.total_bytes
    asked = DescribableLogDirTopic(topic="b", partitions=[1, 9])
    request.topics = [asked, DescribableLogDirTopic(topic="z", partitions=[0])]
    (result,) = (await client.ask(request, version, DescribeLogDirsResponse)).results
    assert [(each.name, len(each.partitions)) for each in result.topics] == [("b", 1)]
    request.topics = []
    (result,) = (await client.ask(request, version, DescribeLogDirsResponse)).results
    assert result.topics == []


async def test_a_broker_in_memory_has_no_disk(client: Any) -> None:
    request = DescribeLogDirsRequest(topics=None)
    (result,) = (await client.ask(request, 5, DescribeLogDirsResponse)).results
    assert (result.total_bytes, result.usable_bytes) == (-1, -1)


@pytest.mark.parametrize(
    ("version", "types", "expected"),
    [
        (0, [], []),
        (1, [], [("1", 4), ("b", 2), ("c", 2), ("d", 2), ("1", 8)]),
        (1, [2], [("b", 2), ("c", 2), ("d", 2)]),
        (1, [4], [("1", 4)]),
        (1, [8, 16, 32], [("1", 8)]),
    ],
)
@pytest.mark.usefixtures("topics")
async def test_what_has_configs_is_listed(
    client: Any, version: int, types: list[int], expected: list[tuple[str, int]]
) -> None:
    request = ListConfigResourcesRequest(resource_types=types)
    answer = await client.ask(request, version, ListConfigResourcesResponse)
    assert answer.error_code == 0
    found = [(each.resource_name, each.resource_type) for each in answer.config_resources]
    assert found == expected


async def test_unknown_types_of_configs_are_refused(client: Any) -> None:
    request = ListConfigResourcesRequest(resource_types=[2, 77])
    answer = await client.ask(request, 1, ListConfigResourcesResponse)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.config_resources == []


@pytest.mark.parametrize("version", range(3))
@pytest.mark.usefixtures("topics")
async def test_no_leader_needs_to_be_elected(client: Any, version: int) -> None:
    request = ElectLeadersRequest(
        topic_partitions=[
            TopicPartitions(topic="b", partitions=[0, 9]),
            TopicPartitions(topic="z", partitions=[0]),
        ]
    )
    answer = await client.ask(request, version, ElectLeadersResponse)
    results = {
        (topic.topic, each.partition_id): each.error_code
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }
    assert results == {
        ("b", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("b", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("z", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    request.topic_partitions = None
    answer = await client.ask(request, version, ElectLeadersResponse)
    listed = [(each.topic, each.partition_result) for each in answer.replica_election_results]
    assert listed == [("b", []), ("c", []), ("d", [])]


async def test_elections_that_are_none_are_refused(client: Any) -> None:
    request = ElectLeadersRequest(election_type=2, topic_partitions=None)
    answer = await client.ask(request, 2, ElectLeadersResponse)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_no_replica_is_being_moved(client: Any) -> None:
    request = ListPartitionReassignmentsRequest(topics=None)
    answer = await client.ask(request, 0, ListPartitionReassignmentsResponse)
    assert (answer.error_code, answer.error_message, answer.topics) == (0, None, [])


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("topic", "partition", "replicas", "code"),
    [
        ("b", 0, [1], ErrorCode.NONE),
        ("b", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("b", 0, [2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("b", 0, [1, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("b", 0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("b", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("b", 9, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("z", 0, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
@pytest.mark.usefixtures("topics")
async def test_replicas_cannot_be_moved(
    client: Any,
    version: int,
    topic: str,
    partition: int,
    replicas: list[int] | None,
    code: ErrorCode,
) -> None:
    asked = ReassignablePartition(partition_index=partition, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[asked])]
    )
    answer = await client.ask(request, version, AlterPartitionReassignmentsResponse)
    assert answer.error_code == 0
    assert answer.responses[0].partitions[0].error_code == code


def update(feature: str, level: int, upgrade_type: int = 1) -> FeatureUpdateKey:
    return FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("updates", "code"),
    [
        ([], ErrorCode.NONE),
        ([update("transaction.version", 2)], ErrorCode.NONE),
        ([update("transaction.version", 1)], ErrorCode.INVALID_UPDATE_VERSION),
        ([update("transaction.version", 3)], ErrorCode.INVALID_UPDATE_VERSION),
        ([update("transaction.version", 2, 0)], ErrorCode.INVALID_UPDATE_VERSION),
        ([update("transaction.version", 2), update("x", 1)], ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
async def test_features_stay_as_they_are(
    client: Any, version: int, updates: list[FeatureUpdateKey], code: ErrorCode
) -> None:
    request = UpdateFeaturesRequest(feature_updates=updates)
    answer = await client.ask(request, version, UpdateFeaturesResponse)
    assert answer.error_code == code
    listed = version == 1 and code is ErrorCode.NONE
    assert len(answer.results) == (len(updates) if listed else 0)


async def test_features_in_the_first_version(client: Any) -> None:
    request = UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature="transaction.version", max_version_level=1)]
    )
    answer = await client.ask(request, 0, UpdateFeaturesResponse)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
