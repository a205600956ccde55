"""The handlers of administration, in every version they declare, through a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from magnetar.apis.api_versions import FEATURES_EPOCH
from magnetar.broker import Broker
from wire.error_code import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.create_topics import (
    CreatableReplicaAssignment,
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
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]

#: Keys and versions to be served at least: what clients of today negotiate.
SERVED = {
    0: (0, 11),
    1: (4, 18),
    2: (1, 11),
    3: (0, 13),
    8: (2, 9),
    9: (1, 9),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    18: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 5),
    23: (2, 4),
    24: (0, 5),
    25: (0, 4),
    26: (0, 4),
    27: (1, 1),
    28: (0, 4),
    32: (1, 4),
    33: (0, 2),
    35: (1, 5),
    37: (0, 3),
    43: (0, 2),
    44: (0, 1),
    45: (0, 1),
    46: (0, 0),
    57: (0, 2),
    60: (0, 2),
    74: (0, 1),
    75: (0, 0),
}


#: What Apache Kafka 4.3.1 answers where everything is allowed.
CLUSTER_OPERATIONS = 8096
TOPIC_OPERATIONS = 3576


def metadata_topic(name: str | None, **fields: Any) -> MetadataRequestTopic:
    return MetadataRequestTopic(name=name, **fields)


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_lists_what_is_served(client: Any, version: int) -> None:
    request = ApiVersionsRequest()
    if version >= 3:
        request.client_software_name = "raw"
        request.client_software_version = "1.0"
    answer = await client.ask(request, version, ApiVersionsResponse)
    listed = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
    for key, (first, last) in SERVED.items():
        assert listed[key][0] <= first and listed[key][1] >= last, key
    assert answer.error_code == 0
    assert answer.finalized_features_epoch == (FEATURES_EPOCH if version >= 3 else -1)
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    expected = {"transaction.version": 2, "group.version": 1}
    assert finalized == (expected if version >= 3 else {})


@pytest.mark.parametrize("name", ["", "-raw", "raw!", "raw-"])
async def test_api_versions_refuses_software_names_that_are_none(client: Any, name: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    answer = await client.ask(request, 3, ApiVersionsResponse)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.api_keys == []


@pytest.mark.parametrize("version", range(14))
async def test_metadata_of_all_topics(broker: Broker, client: Any, version: int) -> None:
    topic = broker.topics.create("a", 2)
    request = MetadataRequest(topics=[] if version == 0 else None)
    answer = await client.ask(request, version, MetadataResponse)
    (described,) = answer.topics
    assert (described.name, described.error_code) == ("a", 0)
    assert [each.partition_index for each in described.partitions] == [0, 1]
    assert described.partitions[0].leader_id == broker.node_id
    assert described.partitions[0].isr_nodes == [broker.node_id]
    assert (answer.brokers[0].host, answer.brokers[0].port) == (
        broker.listeners[0].host,
        broker.listeners[0].port,
    )
    if version >= 2:
        assert answer.cluster_id == broker.cluster_id
    if version >= 10:
        assert described.topic_id == topic.id


@pytest.mark.parametrize("version", [1, 4, 13])
async def test_an_empty_list_asks_for_no_topic(broker: Broker, client: Any, version: int) -> None:
    broker.topics.create("a")
    assert (await client.ask(MetadataRequest(topics=[]), version, MetadataResponse)).topics == []


async def test_metadata_creates_topics_where_client_and_broker_allow_it(
    broker: Broker, client: Any
) -> None:
    ask = MetadataRequest(topics=[metadata_topic("new")], allow_auto_topic_creation=False)
    (missing,) = (await client.ask(ask, 13, MetadataResponse)).topics
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.topics.by_name("new") is None
    ask.allow_auto_topic_creation = True
    (made,) = (await client.ask(ask, 13, MetadataResponse)).topics
    assert (made.error_code, len(made.partitions)) == (0, 1)
    ask.topics = [metadata_topic("bad name"), metadata_topic("__consumer_offsets")]
    bad, internal = (await client.ask(ask, 13, MetadataResponse)).topics
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (internal.is_internal, len(internal.partitions)) == (True, 2)


async def test_metadata_creates_nothing_when_switched_off(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = await start_broker({"auto.create.topics.enable": "false"})
    client = await connect(broker)
    ask = MetadataRequest(topics=[metadata_topic("new")])
    (missing,) = (await client.ask(ask, 4, MetadataResponse)).topics
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_metadata_by_topic_id(broker: Broker, client: Any) -> None:
    topic = broker.topics.create("a")
    unknown = uuid4()
    ask = MetadataRequest(
        topics=[metadata_topic(None, topic_id=topic.id), metadata_topic(None, topic_id=unknown)]
    )
    found, missing = (await client.ask(ask, 12, MetadataResponse)).topics
    assert (found.name, found.error_code) == ("a", 0)
    assert (missing.name, missing.topic_id) == (None, unknown)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_metadata_refuses_topic_ids_before_version_12(client: Any) -> None:
    ask = MetadataRequest(topics=[metadata_topic(None)])
    (refused,) = (await client.ask(ask, 10, MetadataResponse)).topics
    assert refused.error_code == ErrorCode.INVALID_REQUEST


async def test_authorized_operations_are_told_when_asked_for(broker: Broker, client: Any) -> None:
    broker.topics.create("a")
    ask = MetadataRequest(
        topics=None,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    answer = await client.ask(ask, 8, MetadataResponse)
    assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS
    assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS
    silent = await client.ask(MetadataRequest(topics=None), 8, MetadataResponse)
    assert silent.topics[0].topic_authorized_operations == -(2**31)


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics(broker: Broker, client: Any, version: int) -> None:
    config = CreatableTopicConfig(name="retention.ms", value="5")
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(name="a", num_partitions=2, replication_factor=1, configs=[config]),
            CreatableTopic(name="b", num_partitions=-1, replication_factor=-1),
            CreatableTopic(name="c", num_partitions=0, replication_factor=1),
        ]
    )
    a, b, c = (await client.ask(request, version, CreateTopicsResponse)).topics
    assert (a.error_code, b.error_code) == (0, 0)
    assert c.error_code == ErrorCode.INVALID_PARTITIONS
    made = broker.topics.by_name("a")
    assert made is not None
    assert (len(made.partitions), made.settings.retention_ms) == (2, 5)
    if version >= 5:
        assert (a.num_partitions, a.replication_factor) == (2, 1)
        shown = {each.name: (each.value, each.config_source) for each in a.configs}
        assert shown["retention.ms"] == ("5", 1)
        assert shown["segment.bytes"] == ("1073741824", 5)
    if version >= 7:
        assert a.topic_id == made.id
    (again, _, _) = (await client.ask(request, version, CreateTopicsResponse)).topics
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_create_topics_validates_only(broker: Broker, client: Any) -> None:
    good = CreatableTopic(name="a", num_partitions=2, replication_factor=1)
    bad_config = CreatableTopicConfig(name="nope", value="5")
    bad = CreatableTopic(name="b", num_partitions=1, replication_factor=1, configs=[bad_config])
    request = CreateTopicsRequest(topics=[good, bad], validate_only=True)
    first, second = (await client.ask(request, 7, CreateTopicsResponse)).topics
    assert first.error_code == 0
    assert (second.error_code, second.error_message) == (
        ErrorCode.INVALID_CONFIG,
        "Unknown topic config name: nope",
    )
    assert broker.topics.all() == []


@pytest.mark.parametrize(
    ("assignments", "partitions", "code"),
    [
        ([(0, [1]), (1, [1])], -1, ErrorCode.NONE),
        ([(0, [1, 2, 3])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [2])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1]), (0, [1])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1])], 1, ErrorCode.INVALID_REQUEST),
        ([(1, [1])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 1])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1]), (1, [1, 2])], -1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_create_topics_with_assignments(
    client: Any, assignments: list[tuple[int, list[int]]], partitions: int, code: ErrorCode
) -> None:
    topic = CreatableTopic(
        name="a",
        num_partitions=partitions,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assignments
        ],
    )
    request = CreateTopicsRequest(topics=[topic])
    (result,) = (await client.ask(request, 7, CreateTopicsResponse)).topics
    assert result.error_code == code
    if code is ErrorCode.NONE:
        assert result.num_partitions == len(assignments)


async def test_one_request_creates_no_more_partitions_than_one_topic_may_have(
    broker: Broker, client: Any
) -> None:
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(name=f"t{index}", num_partitions=5_000, replication_factor=1)
            for index in range(3)
        ]
    )
    results = (await client.ask(request, 7, CreateTopicsResponse)).topics
    assert [result.error_code for result in results] == [ErrorCode.POLICY_VIOLATION] * 3
    assert broker.topics.all() == []


async def test_a_topic_named_twice_is_not_created(broker: Broker, client: Any) -> None:
    topic = CreatableTopic(name="a", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic, topic])
    (result,) = (await client.ask(request, 7, CreateTopicsResponse)).topics
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert broker.topics.all() == []


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_topics_by_name(broker: Broker, client: Any, version: int) -> None:
    broker.topics.create("a")
    request = (
        DeleteTopicsRequest(topics=[DeleteTopicState(name="a"), DeleteTopicState(name="nope")])
        if version >= 6
        else DeleteTopicsRequest(topic_names=["a", "nope"])
    )
    answer = await client.ask(request, version, DeleteTopicsResponse)
    assert [(each.name, each.error_code) for each in answer.responses] == [
        ("a", 0),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert broker.topics.all() == []


async def test_delete_topics_by_id(broker: Broker, client: Any) -> None:
    topic = broker.topics.create("a")
    internal = broker.topics.ensure_internal("__consumer_offsets")
    request = DeleteTopicsRequest(
        topics=[
            DeleteTopicState(topic_id=topic.id),
            DeleteTopicState(topic_id=uuid4()),
            DeleteTopicState(name="a", topic_id=topic.id),
            DeleteTopicState(),
            DeleteTopicState(topic_id=internal.id),
        ]
    )
    answer = await client.ask(request, 6, DeleteTopicsResponse)
    assert [each.error_code for each in answer.responses] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.POLICY_VIOLATION,
    ]
    assert answer.responses[0].name == "a"


async def test_no_client_deletes_the_progress_of_sparks_queries(
    broker: Broker, client: Any
) -> None:
    """It would take the record of each query with it, and a repeated batch would be written."""
    topic = broker.topics.create("__magnetar_progress")
    by_name = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic.name)])
    by_id = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic.id)])
    for request in (by_name, by_id):
        (refused,) = (await client.ask(request, 6, DeleteTopicsResponse)).responses
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert "magnetar.spark.QUERY" in refused.error_message
    assert broker.topics.by_name(topic.name) is topic


async def test_a_deletion_wakes_those_who_wait_for_data(
    broker: Broker, client: Any, connect: Connect
) -> None:
    broker.topics.create("a")
    waiting = await connect(broker)
    asked = FetchTopic(
        topic="a", partitions=[FetchPartition(partition=0, partition_max_bytes=1000)]
    )
    waiting.send(FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=[asked]), 12)
    await asyncio.sleep(0.05)
    await client.ask(DeleteTopicsRequest(topic_names=["a"]), 4, DeleteTopicsResponse)
    async with asyncio.timeout(30):
        _, body = await waiting.receive()
    (topic,) = FetchResponse.decode(body[1:], 12).responses
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("version", "code"),
    [(2, ErrorCode.INVALID_REQUEST), (6, ErrorCode.TOPIC_DELETION_DISABLED)],
)
async def test_delete_topics_when_switched_off(
    start_broker: StartBroker, connect: Connect, version: int, code: ErrorCode
) -> None:
    broker = await start_broker({"delete.topic.enable": "false"})
    broker.topics.create("a")
    client = await connect(broker)
    request = (
        DeleteTopicsRequest(topics=[DeleteTopicState(name="a")])
        if version >= 6
        else DeleteTopicsRequest(topic_names=["a"])
    )
    (result,) = (await client.ask(request, version, DeleteTopicsResponse)).responses
    assert result.error_code == code


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(broker: Broker, client: Any, version: int) -> None:
    answer = await client.ask(DescribeClusterRequest(), version, DescribeClusterResponse)
    assert (answer.cluster_id, answer.controller_id) == (broker.cluster_id, broker.node_id)
    assert [each.broker_id for each in answer.brokers] == [broker.node_id]


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_describe_cluster_knows_brokers_only(
    client: Any, endpoint_type: int, code: ErrorCode
) -> None:
    request = DescribeClusterRequest(endpoint_type=endpoint_type)
    assert (await client.ask(request, 1, DescribeClusterResponse)).error_code == code


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_configs(broker: Broker, client: Any, version: int) -> None:
    broker.topics.create("a", configs={"retention.ms": "5"})
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=2, resource_name="a", configuration_keys=None),
            DescribeConfigsResource(
                resource_type=4,
                resource_name=str(broker.node_id),
                configuration_keys=["durability", "nope"],
            ),
        ],
        include_synonyms=True,
        include_documentation=version >= 3,
    )
    topic, node = (await client.ask(request, version, DescribeConfigsResponse)).results
    shown = {config.name: config for config in topic.configs}
    assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("5", 1)
    assert [each.name for each in shown["retention.ms"].synonyms] == ["retention.ms"]
    (durability,) = node.configs
    assert (durability.name, durability.value, durability.config_source) == (
        "durability",
        "memory",
        4,
    )
    if version >= 3:
        assert durability.config_type == 2
        assert "acknowledgement" in durability.documentation


@pytest.mark.parametrize(
    ("resource_type", "name", "code"),
    [
        (2, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, "bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (4, "99", ErrorCode.INVALID_REQUEST),
        (4, "", ErrorCode.NONE),
        (4, "x", ErrorCode.INVALID_REQUEST),
        (8, "", ErrorCode.INVALID_REQUEST),
        (8, "2", ErrorCode.INVALID_REQUEST),
        (16, "", ErrorCode.INVALID_REQUEST),
        (1, "", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_describe_configs_of_what_is_not_there(
    client: Any, resource_type: int, name: str, code: ErrorCode
) -> None:
    resource = DescribeConfigsResource(resource_type=resource_type, resource_name=name)
    request = DescribeConfigsRequest(resources=[resource])
    (result,) = (await client.ask(request, 4, DescribeConfigsResponse)).results
    assert result.error_code == code
    assert result.configs == []


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("key_type", [0, 1])
async def test_find_coordinator(broker: Broker, client: Any, version: int, key_type: int) -> None:
    if version == 0:
        key_type = 0  # all that version 0 knows
    request = (
        FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x", "y"])
        if version >= 4
        else FindCoordinatorRequest(key_type=key_type, key="x")
    )
    answer = await client.ask(request, version, FindCoordinatorResponse)
    found = answer.coordinators if version >= 4 else [answer]
    assert len(found) == (2 if version >= 4 else 1)
    for each in found:
        assert (each.error_code, each.node_id) == (0, broker.node_id)
        assert each.error_message == ("NONE" if 1 <= version <= 3 else "")
        assert each.port == broker.listeners[0].port
    name = "__transaction_state" if key_type else "__consumer_offsets"
    assert broker.topics.by_name(name) is not None


@pytest.mark.parametrize("version", [1, 6])
async def test_find_coordinator_of_an_unknown_kind(client: Any, version: int) -> None:
    request = FindCoordinatorRequest(key_type=2)
    if version >= 4:
        request.coordinator_keys = ["g:t:0"]
    else:
        request.key = "g:t:0"
    answer = await client.ask(request, version, FindCoordinatorResponse)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)
