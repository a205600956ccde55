"""Deleting the first records of partitions (KIP-107)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.client.cluster import Client, Leaders, TopicPartition
from magnetar.client.partitions import (
    EARLIEST,
    LATEST,
    READ_UNCOMMITTED,
    ask_leaders,
    list_offsets,
)
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)


@dataclass(frozen=True)
class Trim:
    """A partition's first offset, and the first offset that shall stay."""

    topic: str
    partition: int
    start: int
    new_start: int

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "start": self.start,
            "new_start": self.new_start,
        }


def plan_trims(
    client: Client, leaders: Leaders, offsets: Mapping[TopicPartition, int]
) -> list[Trim]:
    """Return what would be deleted before these offsets, by partition; nothing comes back.

    An offset outside its partition becomes the nearest one within.
    """
    starts = list_offsets(client, leaders, offsets, EARLIEST)
    ends = list_offsets(client, leaders, offsets, LATEST, READ_UNCOMMITTED)
    return [
        Trim(*place, starts[place], min(max(offset, starts[place]), ends[place]))
        for place, offset in sorted(offsets.items())
    ]


def beyond_end(trims: Iterable[Trim], offsets: Mapping[TopicPartition, int]) -> Trim | None:
    """Return the first of the trims whose partition ends before the offset asked for, or None.

    DeleteRecords refuses such an offset (OFFSET_OUT_OF_RANGE), partition by partition. To refuse it
    before costs no record of the others: the offset is mistyped.
    """
    return next((each for each in trims if each.new_start < offsets[each.place]), None)


def trim(client: Client, leaders: Leaders, trims: list[Trim]) -> list[Trim]:
    """Delete the records, and return where the partitions begin now. Refused for the first."""
    wanted = {each.place: each for each in trims}

    def ask(
        node_id: int, topics: dict[str, list[int]]
    ) -> Iterable[tuple[str, Iterable[DeleteRecordsPartitionResult]]]:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=name,
                    partitions=[
                        DeleteRecordsPartition(
                            partition_index=index, offset=wanted[name, index].new_start
                        )
                        for index in indexes
                    ],
                )
                for name, indexes in topics.items()
            ],
            timeout_ms=client.timeout_ms,
        )
        response = client.call(request, DeleteRecordsResponse, node_id=node_id)
        return [(topic.name, topic.partitions) for topic in response.topics]

    done = [
        Trim(*place, wanted[place].start, answer.low_watermark)
        for place, answer in ask_leaders(client, leaders, wanted, ask)
    ]
    return sorted(done, key=lambda each: each.place)
