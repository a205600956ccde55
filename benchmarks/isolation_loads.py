"""The loads of `make isolation`, by the name that the table shows: each is one function.

A load makes what it needs, then does its worst within `stage.measured()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from struct import pack
from threading import Thread

from benchmarks import handshake_load
from benchmarks.frames import (
    FETCH_VERSION,
    Frames,
    Identity,
    add_partitions,
    end,
    end_request,
    framed,
    new_producers,
)
from benchmarks.isolation import Stage
from compat_tests.admin import create_topic
from wire.message import Buffer, Message
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delete_topics import DeleteTopicsRequest
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.end_txn import EndTxnResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.list_groups import ListGroupsRequest
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import SimpleRecord, build_batch
from wire.resource_type import ResourceType

MEGABYTE = 1 << 20
_TOPIC = "load"
_MANY = 10_000
_COMMIT, _CREATE, _GROW, _JOIN, _METADATA, _PRODUCE = 8, 7, 3, 5, 9, 9
_NO_PRODUCER = Identity("", -1, -1)


def nothing(stage: Stage) -> None:
    with stage.measured():
        time.sleep(3)  # The probe measures an idle broker for so long.


# Many small requests at once.


def describe_configs(stage: Stage) -> None:
    create_topic(stage.bootstrap, _TOPIC)
    resource = DescribeConfigsResource(
        resource_type=ResourceType.TOPIC,
        resource_name=_TOPIC,
        configuration_keys=["retention.ms"],
    )
    with stage.measured():
        stage.pipeline(DescribeConfigsRequest(resources=[resource]), 1, 3000)


def list_groups(stage: Stage) -> None:
    _commit_offsets(stage, groups=500, topics=1, partitions=1)
    with stage.measured():
        stage.pipeline(ListGroupsRequest(), 3, 3000)


def validate_topics(stage: Stage) -> None:
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    with stage.measured():
        stage.pipeline(CreateTopicsRequest(topics=[topic], validate_only=True), _CREATE, 3000)


def find_coordinator(stage: Stage) -> None:
    with stage.measured():
        stage.pipeline(FindCoordinatorRequest(key="group"), 1, 9000)


def pipelines_of_many_clients(stage: Stage) -> None:
    connections = [stage.connect() for _ in range(200)]
    data = framed(FindCoordinatorRequest(key="group"), 1) * 500
    with stage.measured():
        _at_once(lambda each: each.send_bytes(data), connections)
        for connection in connections:
            for _ in range(500):
                connection.receive_frame()


# Requests about ten thousand partitions.


def metadata(stage: Stage) -> None:
    _create_many(stage)
    with stage.measured():
        stage.pipeline(MetadataRequest(topics=None), _METADATA, 20)


def create_partitions(stage: Stage) -> None:
    # Two requests: one may make no more than 10,000 topics and partitions together.
    topics = [
        CreatableTopic(name=name, num_partitions=_MANY // 2, replication_factor=1)
        for name in ("first", "second")
    ]
    with stage.measured():
        for topic in topics:
            stage.pipeline(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), _CREATE, 1)


def fetch_partitions(stage: Stage) -> None:
    _create_many(stage)
    wanted = [FetchPartition(partition=index, partition_max_bytes=1) for index in range(_MANY)]
    topic = FetchTopic(topic=_TOPIC, partitions=wanted)
    with stage.measured():
        stage.pipeline(FetchRequest(max_bytes=1, topics=[topic]), FETCH_VERSION, 5)


def offset_fetch(stage: Stage) -> None:
    _commit_offsets(stage, groups=100, topics=1, partitions=500)
    groups = [OffsetFetchRequestGroup(group_id=f"group-{n}", topics=None) for n in range(100)]
    with stage.measured():
        stage.pipeline(OffsetFetchRequest(groups=groups), 8, 3)


def offsets_by_time(stage: Stage) -> None:
    create_topic(stage.bootstrap, _TOPIC, 10, {"segment_bytes": str(MEGABYTE)})
    batch = _batch(b"x" * 900_000)
    connection = stage.connect()
    for _ in range(20):
        connection.call(_produce(_TOPIC, range(10), batch), ProduceResponse, _PRODUCE)
    stage.broker.restart(clean=True)
    asked = [ListOffsetsPartition(partition_index=n, timestamp=1) for n in range(10)]
    topic = ListOffsetsTopic(name=_TOPIC, partitions=asked)
    with stage.measured():
        stage.pipeline(ListOffsetsRequest(topics=[topic]), 2, 3)


# Requests that name far more than there is.


def fetch_of_100_megabytes(stage: Stage) -> None:
    wanted = [FetchPartition(partition=n, partition_max_bytes=1) for n in range(2_900_000)]
    request = FetchRequest(max_wait_ms=1000, topics=[FetchTopic(topic=_TOPIC, partitions=wanted)])
    data = framed(request, FETCH_VERSION)
    with stage.measured():
        stage.send_refused(data)


def fetch_of_100_000_partitions(stage: Stage) -> None:
    wanted = [FetchPartition(partition=n, partition_max_bytes=1) for n in range(100_000)]
    request = FetchRequest(topics=[FetchTopic(topic=_TOPIC, partitions=wanted)])
    with stage.measured():
        stage.pipeline(request, FETCH_VERSION, 1)


def create_100_000_topics(stage: Stage) -> None:
    topics = [CreatableTopic(name=f"t{n}", num_partitions=1) for n in range(100_000)]
    with stage.measured():
        stage.pipeline(CreateTopicsRequest(topics=topics), _CREATE, 1)


def commit_a_million_offsets(stage: Stage) -> None:
    data = framed(_commit("group", [_TOPIC], 1_000_000), _COMMIT)
    with stage.measured():
        stage.send_refused(data)


def commit_100_000_offsets(stage: Stage) -> None:
    create_topic(stage.bootstrap, _TOPIC, 10)
    with stage.measured():
        stage.pipeline(_commit("group", [_TOPIC], 100_000), _COMMIT, 1)


def a_million_unknown_topics(stage: Stage) -> None:
    names = [MetadataRequestTopic(name=f"unknown-{n}") for n in range(1_000_000)]
    request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    data = framed(request, _METADATA)
    with stage.measured():
        stage.send_refused(data)


def unknown_topics(stage: Stage) -> None:
    names = [MetadataRequestTopic(name=f"unknown-{n}") for n in range(100_000)]
    with stage.measured():
        stage.pipeline(MetadataRequest(topics=names, allow_auto_topic_creation=False), _METADATA, 1)


# Groups.


def joins_of_a_megabyte(stage: Stage) -> None:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(MEGABYTE))]
    request = JoinGroupRequest(
        group_id="group",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=5_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    data = framed(request, 3)
    connections = [stage.connect() for _ in range(300)]
    with stage.measured():
        _at_once(lambda each: each.send_bytes(data), connections)
        time.sleep(3)  # No answer comes before the members' rebalance ends: the probe goes on.


def joins_at_once(stage: Stage) -> None:
    create_topic(stage.bootstrap, _TOPIC, 100)
    _consumer_group(stage, [[_TOPIC]] * 300)


def mixed_subscriptions(stage: Stage) -> None:
    names = [f"mixed-{n}" for n in range(500)]
    topics = [CreatableTopic(name=name, num_partitions=10) for name in names]
    connection = stage.connect()
    for each in topics:
        each.replication_factor = 1
    connection.call(CreateTopicsRequest(topics=topics), CreateTopicsResponse, _CREATE)
    _consumer_group(stage, [names[number:] for number in range(7)])


def idle_consumers(stage: Stage) -> None:
    create_topic(stage.bootstrap, _TOPIC, 100)
    wanted = [FetchPartition(partition=n, partition_max_bytes=MEGABYTE) for n in range(4)]
    topic = FetchTopic(topic=_TOPIC, partitions=wanted)
    data = framed(FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic]), FETCH_VERSION)
    connections = [stage.connect() for _ in range(1000)]
    with stage.measured():
        for _ in range(4):
            _at_once(lambda each: each.send_bytes(data), connections)
            for connection in connections:
                connection.receive_frame()


def delete_topics(stage: Stage) -> None:
    names = _commit_offsets(stage, groups=300, topics=100, partitions=10)
    request = DeleteTopicsRequest(topic_names=names, timeout_ms=60_000)
    with stage.measured():
        stage.pipeline(request, 4, 1)


# Transactions and records.


def commit_of_a_parent(stage: Stage) -> None:
    create_topic(stage.bootstrap, _TOPIC, 100)
    connection = stage.connect()
    for child in new_producers([connection], [f"parent~>{n}" for n in range(600)]):
        add_partitions(connection, child, _TOPIC, range(100))
        end(connection, child, commit=True)
    (parent,) = new_producers([connection], ["parent"])
    add_partitions(connection, parent, _TOPIC, [0])
    with stage.measured():
        connection.call(end_request(parent, commit=True), EndTxnResponse, 3)


def produce_to_1000_partitions(stage: Stage) -> None:
    create_topic(stage.bootstrap, _TOPIC, 1000)
    connection = stage.connect()
    (who,) = new_producers([connection], ["wide"])
    add_partitions(connection, who, _TOPIC, range(1000))
    batch = build_batch(
        [SimpleRecord(None, b"x", 1)],
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    request = _produce(_TOPIC, range(1000), batch)
    request.transactional_id = who.transactional_id
    with stage.measured():
        connection.call(request, ProduceResponse, _PRODUCE)
        end(connection, who, commit=True)


def recompression(stage: Stage) -> None:
    create_topic(stage.bootstrap, _TOPIC, 1, {"compression_type": "gzip"})
    text = b"".join(b"line %d of a log that compresses well enough\n" % n for n in range(20_000))
    with stage.measured():
        stage.pipeline(_produce(_TOPIC, [0], _batch(text)), _PRODUCE, 30)


def produce_of_100_megabytes(stage: Stage) -> None:
    create_topic(stage.bootstrap, _TOPIC, 100)
    request = _produce(_TOPIC, range(100), _batch(bytes(1_000_000)))
    with stage.measured():
        stage.pipeline(request, _PRODUCE, 3)


# Connections that misbehave.


def connections_that_come_and_go(stage: Stage) -> None:
    with stage.measured():
        for _ in range(1000):
            Frames(stage.bootstrap).close()
        crowd = [Frames(stage.bootstrap) for _ in range(1000)]
        for connection in crowd:
            connection.close()


def readers_that_never_read(stage: Stage) -> None:
    _create_many(stage)
    connections = [stage.connect() for _ in range(100)]
    data = framed(MetadataRequest(topics=None), _METADATA) * 5
    with stage.measured():
        _at_once(lambda each: each.send_bytes(data), connections)
        time.sleep(5)  # No answer is read: the broker's attempts to send are measured for so long.


def half_frames(stage: Stage) -> None:
    connections = [stage.connect() for _ in range(300)]
    start = pack(">i", 100 * MEGABYTE) + framed(ApiVersionsRequest(), 0)[4:] + bytes(MEGABYTE)

    def send(connection: Frames) -> None:
        # The broker stops reading where they hold too much: one that waits here is what is asked.
        connection.set_timeout(1)
        try:
            connection.send_bytes(start)
        except (TimeoutError, ConnectionError):
            return

    with stage.measured():
        _at_once(send, connections)
        time.sleep(2)  # No frame is complete: what holding them costs is measured for so long.


LOADS: dict[str, Callable[[Stage], None]] = {
    "nothing": nothing,
    "3,000 DescribeConfigs of one key, pipelined": describe_configs,
    "3,000 ListGroups of 500 groups, pipelined": list_groups,
    "3,000 CreateTopics that only validate, pipelined": validate_topics,
    "9,000 FindCoordinator, pipelined": find_coordinator,
    "200 connections with 500 FindCoordinator each": pipelines_of_many_clients,
    "Metadata of 10,000 partitions": metadata,
    "creating 10,000 partitions": create_partitions,
    "Fetch of 10,000 partitions": fetch_partitions,
    "OffsetFetch of 100 groups with 500 offsets": offset_fetch,
    "ListOffsets by time, 10 partitions of 20 cold segments": offsets_by_time,
    "Fetch of 100 MB that names 2.9 million partitions": fetch_of_100_megabytes,
    "Fetch that names 100,000 partitions": fetch_of_100_000_partitions,
    "CreateTopics of 100,000 topics": create_100_000_topics,
    "OffsetCommit of a million offsets": commit_a_million_offsets,
    "OffsetCommit of 100,000 offsets": commit_100_000_offsets,
    "Metadata of a million unknown topics": a_million_unknown_topics,
    "Metadata of 100,000 unknown topics": unknown_topics,
    "300 JoinGroups of 1 MB": joins_of_a_megabyte,
    "300 members that join a consumer group": joins_at_once,
    "7 members of mixed subscriptions to 500 topics": mixed_subscriptions,
    "1,000 idle consumers": idle_consumers,
    "DeleteTopics of 100 topics beside 300,000 offsets": delete_topics,
    "commit of a parent of 600 votes for 100 partitions": commit_of_a_parent,
    "a transaction of 1,000 partitions": produce_to_1000_partitions,
    "30 MB to be compressed by the broker": recompression,
    "Produce of 100 MB": produce_of_100_megabytes,
    "2,000 connections that come and go": connections_that_come_and_go,
    "1,000 TLS handshakes at once": handshake_load.handshakes,
    "100 clients that do not read 300 MB": readers_that_never_read,
    "300 half frames of 100 MB": half_frames,
}


def _at_once(send: Callable[[Frames], None], connections: Iterable[Frames]) -> None:
    """Send on all connections, each in a thread: the broker may read one of them later."""
    threads = [Thread(target=send, args=(each,), daemon=True) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)


def _batch(value: bytes) -> bytes:
    return bytes(build_batch([SimpleRecord(None, value, time.time_ns() // 1_000_000)]))


def _produce(topic: str, partitions: Iterable[int], batch: Buffer) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=batch) for index in partitions]
    return ProduceRequest(
        acks=-1, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )


def _commit(group_id: str, topics: Iterable[str], partitions: int) -> Message:
    places = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
        for index in range(partitions)
    ]
    named = [OffsetCommitRequestTopic(name=topic, partitions=places) for topic in topics]
    return OffsetCommitRequest(group_id=group_id, topics=named)


def _create_many(stage: Stage) -> None:
    """Create the topic of the loads with _MANY partitions: more than one request may create."""
    create_topic(stage.bootstrap, _TOPIC, _MANY // 2)
    growth = CreatePartitionsTopic(name=_TOPIC, count=_MANY, assignments=None)
    request = CreatePartitionsRequest(topics=[growth], timeout_ms=60_000)
    answer = stage.connect().call(request, CreatePartitionsResponse, _GROW)
    assert answer.results[0].error_code == 0, answer.results[0]


def _commit_offsets(stage: Stage, *, groups: int, topics: int, partitions: int) -> list[str]:
    """Commit offsets of some groups for some topics, which are returned."""
    names = [f"committed-{number}" for number in range(topics)]
    for name in names:
        create_topic(stage.bootstrap, name, partitions)
    connection = stage.connect()
    new_producers([connection], ["until-coordinators-answer"])
    stage.pipeline(FindCoordinatorRequest(key="group"), 1, 1)
    for number in range(groups):
        request = _commit(f"group-{number}", names, partitions)
        answer = connection.call(request, OffsetCommitResponse, _COMMIT)
        assert answer.topics[0].partitions[0].error_code == 0, answer.topics[0]
    return names


def _consumer_group(stage: Stage, subscriptions: list[list[str]]) -> None:
    """Let members with these subscriptions join one group (KIP-848) at once."""
    stage.pipeline(FindCoordinatorRequest(key="group"), 1, 1)
    joining = []
    for number, names in enumerate(subscriptions):
        request = ConsumerGroupHeartbeatRequest(
            group_id="group",
            member_id=f"member-{number}",
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=names,
            topic_partitions=[],
        )
        joining.append((stage.connect(), framed(request, 1)))
    with stage.measured():
        for connection, frame in joining:
            connection.send_bytes(frame)
        for connection, _ in joining:
            connection.receive_frame()
