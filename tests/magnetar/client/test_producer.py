"""Which partition a producer sends a record to while one of them has no leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.client.batching import ProducerRecord, partition_for
from magnetar.client.cluster import TopicPartition
from magnetar.client.errors import ClientError
from magnetar.client.producer import Producer
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.init_producer_id import InitProducerIdResponse
from wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

PARTITIONS = 4
WITHOUT_LEADER = 1


class Cluster:
    """A topic of four partitions. One of them gets its leader when it is first written to."""

    timeout_s = 30.0
    timeout_ms = 30_000

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int] = {
            ("a", index): 7 for index in range(PARTITIONS) if index != WITHOUT_LEADER
        }
        self.written: list[int] = []

    def topics(self, _: object) -> dict[TopicPartition, int]:
        return dict(self.leaders)

    def retry_transient(self, ask: Callable[[], Any], _: object) -> Any:
        return ask()

    def call(self, request: Message, _: object, **__: object) -> Message:
        if isinstance(request, MetadataRequest):
            partitions = [
                MetadataResponsePartition(
                    partition_index=index, leader_id=self.leaders.get(("a", index), -1)
                )
                for index in range(PARTITIONS)
            ]
            topic = MetadataResponseTopic(name="a", partitions=partitions)
            return MetadataResponse(topics=[topic])
        if not isinstance(request, ProduceRequest):
            return InitProducerIdResponse(producer_id=1)
        index = request.topic_data[0].partition_data[0].index
        answer = PartitionProduceResponse(index=index, base_offset=0)
        if ("a", index) in self.leaders:
            self.written.append(index)
        else:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self.leaders["a", index] = 7
        return ProduceResponse(
            responses=[TopicProduceResponse(name="a", partition_responses=[answer])]
        )


def opened(cluster: Any, partition: int | None = None) -> Producer:
    producer = Producer(cluster, "a", partition)
    producer.open()
    return producer


def test_a_key_goes_to_its_partition_also_while_another_has_no_leader() -> None:
    keys = [b"key-%d" % number for number in range(40)]
    cluster = Cluster()
    opened(cluster).send(ProducerRecord(key, b"v") for key in keys)
    assert sorted(cluster.written) == list(range(PARTITIONS))
    for key in keys:
        cluster = Cluster()
        opened(cluster).send([ProducerRecord(key, b"v")])
        assert cluster.written == [partition_for(key, PARTITIONS)]


def test_a_record_without_a_key_goes_where_there_is_a_leader() -> None:
    cluster = Cluster()
    producer = opened(cluster)
    for _ in range(2 * PARTITIONS):
        producer.send([ProducerRecord(None, b"v")])
    assert set(cluster.written) == {0, 2, 3}


def test_a_partition_that_is_asked_for_and_has_no_leader_is_named_with_those_there_are() -> None:
    with pytest.raises(ClientError, match="no partition 1 with a leader: .* are 0 to 3"):
        opened(Cluster(), WITHOUT_LEADER)
