"""What partitions have open, and what that keeps from read_committed readers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from magnetar.client.cluster import Client, TopicPartition, check
from wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST, EARLIEST = -1, -2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_NO_REPLICA = -1
_ISOLATION_SINCE = 2

Leaders = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class OpenProducer:
    """A producer that has data without a marker in a partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """-1: no marker of this producer was written there."""
    start_offset: int
    last_timestamp: int
    """Of its last batch, as the producer said, ms; in a table: when it wrote last."""
    records_held_back: int = 0
    """Records at or after `start_offset`, if they wait for this transaction and no older one."""

    @property
    def where(self) -> TopicPartition:
        return self.topic, self.partition

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "coordinator_epoch": self.coordinator_epoch,
            "start_offset": self.start_offset,
            "last_timestamp": self.last_timestamp,
            "records_held_back": self.records_held_back,
        }


def describe_open(
    client: Client, leaders: Leaders, wanted: Collection[TopicPartition]
) -> list[OpenProducer]:
    """Return who has a transaction open in the partitions wanted, in their order.

    Refused for a partition that does not exist.
    """
    found = []
    for node_id, topics in by_leader(leaders, wanted):
        request = DescribeProducersRequest(
            topics=[TopicRequest(name=name, partition_indexes=each) for name, each in topics]
        )
        answer = client.call(request, DescribeProducersResponse, node_id=node_id)
        for topic in answer.topics:
            for partition in topic.partitions:
                check(partition.error_code, f"{topic.name}-{partition.partition_index}")
                found += [
                    OpenProducer(
                        topic.name,
                        partition.partition_index,
                        state.producer_id,
                        state.producer_epoch,
                        state.coordinator_epoch,
                        state.current_txn_start_offset,
                        state.last_timestamp,
                    )
                    for state in partition.active_producers
                    if state.current_txn_start_offset >= 0
                ]
    return sorted(found, key=lambda each: (each.topic, each.partition, each.start_offset))


def held_back(
    client: Client, leaders: Leaders, open_producers: Iterable[OpenProducer]
) -> list[OpenProducer]:
    """Return the same with the number of records that wait for each."""
    producers = list(open_producers)
    wanted = {each.where for each in producers}
    stable = list_offsets(client, leaders, wanted, LATEST, READ_COMMITTED)
    ends = list_offsets(client, leaders, wanted, LATEST)
    return [
        replace(each, records_held_back=ends[each.where] - each.start_offset)
        if stable.get(each.where) == each.start_offset
        else each
        for each in producers
    ]


def list_offsets(
    client: Client,
    leaders: Leaders,
    wanted: Collection[TopicPartition],
    timestamp: int,
    isolation: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """Return the offset of each partition wanted.

    EARLIEST: where the log begins. LATEST: the end (exclusive) of what readers of that isolation
    may see. A time in ms: the first record that is not older, -1 if there is none.
    """
    found = {}
    for node_id, topics in by_leader(leaders, wanted):
        request = ListOffsetsRequest(
            replica_id=_NO_REPLICA,
            isolation_level=isolation,
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                        for index in each
                    ],
                )
                for name, each in topics
            ],
        )
        answer = client.call(
            request, ListOffsetsResponse, node_id=node_id, at_least=_ISOLATION_SINCE
        )
        for topic in answer.topics:
            for partition in topic.partitions:
                check(partition.error_code, f"{topic.name}-{partition.partition_index}")
                found[topic.name, partition.partition_index] = partition.offset
    return found


def by_leader(
    leaders: Leaders, wanted: Collection[TopicPartition]
) -> Iterator[tuple[int, list[tuple[str, list[int]]]]]:
    """Yield each leader with the partitions wanted of it, by topic, in order.

    A partition without a known leader is asked of any: its answer says what is wrong with it.
    """
    any_node = min(leaders.values(), default=-1)
    by_node: dict[int, list[TopicPartition]] = {}
    for partition in sorted(wanted):
        by_node.setdefault(leaders.get(partition, any_node), []).append(partition)
    for node_id, partitions in sorted(by_node.items()):
        yield (
            node_id,
            [
                (topic, [index for _, index in each])
                for topic, each in groupby(partitions, key=itemgetter(0))
            ],
        )
