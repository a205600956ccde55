"""Offsets of partitions, and the transactions that are open in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeVar

from magnetar.client.cluster import RETRY_DELAY_S, Client, Leaders, TopicPartition, by_leader
from magnetar.client.errors import check
from wire.error_code import ErrorCode
from wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

#: The leader has changed, or does not know yet how far it may serve. All of it passes; new metadata
#: helps.
MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
LATEST, EARLIEST = -1, -2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_NO_REPLICA = -1
#: Older versions cannot ask for the last stable offset: they would answer with the high watermark,
#: and a hanging transaction would go unnoticed.
_ISOLATION_SINCE = 2


class Answer(Protocol):
    """What a response says of one partition."""

    partition_index: int
    error_code: int


A = TypeVar("A", bound=Answer)


@dataclass(frozen=True)
class OpenProducer:
    """A producer with an open transaction in a partition: data there that has no marker."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """-1: this producer has no marker in the partition."""
    start_offset: int
    last_timestamp: int
    """The largest timestamp, in ms, of the producer's last batch."""
    records_held_back: int = 0
    """Records from `start_offset` on; 0 while an older transaction keeps readers from them."""

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Producer:
    """An idempotent or transactional producer that a partition remembers."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    """The largest timestamp, in ms, of its last batch."""
    coordinator_epoch: int
    """The epoch in its last marker in the partition; -1: there is none."""
    open_from: int
    """The first offset of its open transaction; -1: none is open."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "open_from": None if self.open_from < 0 else self.open_from}


def ask_leaders(
    client: Client,
    leaders: Leaders,
    wanted: Iterable[TopicPartition],
    ask: Callable[[int, dict[str, list[int]]], Iterable[tuple[str, Iterable[A]]]],
    *,
    skips_deleted: bool = False,
) -> Iterator[tuple[TopicPartition, A]]:
    """Yield what the leaders of the wanted partitions answer to `ask`, by partition.

    `ask` is called with a node id, and the partitions that this node leads, by topic; it returns
    answers by topic. If a partition has moved meanwhile, its new leader is asked, until the
    client's timeout is over. Refused for the first partition with an error. `skips_deleted`: one
    that is in `leaders`, and does not exist any more, has no answer.
    """
    deadline = time.monotonic() + client.timeout_s
    while True:
        moved = []
        for node_id, topics in by_leader(leaders, wanted):
            for topic, answers in ask(node_id, topics):
                for answer in answers:
                    place = topic, answer.partition_index
                    if answer.error_code in MOVED and time.monotonic() < deadline:
                        moved.append(place)
                    elif skips_deleted and _is_deleted(answer, place in leaders):
                        continue
                    else:
                        check(answer.error_code, f"{topic}-{answer.partition_index}")
                        yield place, answer
        if not moved:
            return
        time.sleep(RETRY_DELAY_S)  # A partition on its way has no leader for a moment.
        wanted = moved
        # Where no partition has a leader yet, the former one says so.
        leaders = client.topics({topic for topic, _ in moved}) or leaders


def _is_deleted(answer: Answer, was_there: bool) -> bool:
    return was_there and answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def describe_producers(
    client: Client, leaders: Leaders, wanted: Collection[TopicPartition]
) -> list[Producer]:
    """Return the producers that the wanted partitions remember, by partition and producer id.

    Refused for a partition that does not exist, unless it is in `leaders`: then it has been deleted
    since, as topics are at any time.
    """

    def ask(
        node_id: int, topics: dict[str, list[int]]
    ) -> Iterable[tuple[str, Iterable[PartitionResponse]]]:
        request = DescribeProducersRequest(
            topics=[
                TopicRequest(name=name, partition_indexes=each) for name, each in topics.items()
            ]
        )
        response = client.call(request, DescribeProducersResponse, node_id=node_id)
        return [(topic.name, topic.partitions) for topic in response.topics]

    found = [
        Producer(
            *place,
            state.producer_id,
            state.producer_epoch,
            state.last_sequence,
            state.last_timestamp,
            state.coordinator_epoch,
            state.current_txn_start_offset,
        )
        for place, answer in ask_leaders(client, leaders, wanted, ask, skips_deleted=True)
        for state in answer.active_producers
    ]
    return sorted(found, key=lambda each: (each.topic, each.partition, each.producer_id))


def describe_open(
    client: Client, leaders: Leaders, wanted: Collection[TopicPartition]
) -> list[OpenProducer]:
    """Return the producers with an open transaction in the wanted partitions, by partition.

    Refused as `describe_producers`.
    """
    found = [
        OpenProducer(
            each.topic,
            each.partition,
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.open_from,
            each.last_timestamp,
        )
        for each in describe_producers(client, leaders, wanted)
        if each.open_from >= 0
    ]
    return sorted(found, key=lambda each: (each.topic, each.partition, each.start_offset))


def held_back(
    client: Client, leaders: Leaders, open_producers: Iterable[OpenProducer]
) -> list[OpenProducer]:
    """Return the same producers, with the number of records that readers wait for."""
    producers = list(open_producers)
    wanted = {each.place for each in producers}
    stable, ends = bounds(client, leaders, wanted)
    return [
        replace(each, records_held_back=ends[each.place] - each.start_offset)
        # The last stable offset is where the oldest open transaction begins: that one holds readers
        # back, and ending a younger one would not help them.
        if stable.get(each.place) == each.start_offset
        else each
        for each in producers
    ]


def bounds(
    client: Client, leaders: Leaders, wanted: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the stable offset and the end of each partition."""
    # Stable offsets first: a transaction that ends between the questions cannot make an end that
    # lies below its stable offset.
    stable = list_offsets(client, leaders, wanted, LATEST, READ_COMMITTED)
    return stable, list_offsets(client, leaders, wanted, LATEST)


def list_offsets(
    client: Client,
    leaders: Leaders,
    wanted: Collection[TopicPartition],
    timestamp: int,
    isolation: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """Return the offset that `timestamp` stands for in each wanted partition.

    EARLIEST: the log's first offset. LATEST: the end (exclusive) of what readers with `isolation`
    may see. A time in ms: the first record that is not older, -1 if there is none.
    """

    def ask(
        node_id: int, topics: dict[str, list[int]]
    ) -> Iterable[tuple[str, Iterable[ListOffsetsPartitionResponse]]]:
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
                for name, each in topics.items()
            ],
        )
        response = client.call(
            request, ListOffsetsResponse, node_id=node_id, at_least=_ISOLATION_SINCE
        )
        return [(topic.name, topic.partitions) for topic in response.topics]

    return {place: answer.offset for place, answer in ask_leaders(client, leaders, wanted, ask)}
