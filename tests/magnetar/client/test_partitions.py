"""What leaders are asked about partitions while these move between nodes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.errors import Refused
from magnetar.client.partitions import LATEST, describe_producers, list_offsets
from magnetar.client.trimming import Trim, trim
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from wire.messages.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)
from wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

_ENDS = {0: 10, 1: 11}


class Moving:
    """Two partitions of topic `t`. Partition 1 has moved to node 2 before the first question; the
    second look at the metadata tells so."""

    timeout_s = 1.0
    timeout_ms = 1000

    def __init__(self, *, is_for_ever: bool = False) -> None:
        self._is_for_ever = is_for_ever
        self._looks = 0
        self.asked: list[tuple[int, list[int]]] = []

    @property
    def leaders(self) -> dict[TopicPartition, int]:
        return {("t", 0): 1, ("t", 1): 1}

    def topics(self, names: set[str]) -> dict[TopicPartition, int]:
        assert names == {"t"}
        self._looks += 1
        return self.leaders if self._looks == 1 else {("t", 0): 1, ("t", 1): 2}

    def call(self, request: Any, _: type[Message], node_id: int, **__: Any) -> Message:
        (topic,) = request.topics
        indexes = getattr(topic, "partition_indexes", None) or [
            each.partition_index for each in topic.partitions
        ]
        self.asked.append((node_id, indexes))
        codes = {
            index: ErrorCode.NOT_LEADER_OR_FOLLOWER
            if index == 1 and (node_id == 1 or self._is_for_ever)
            else ErrorCode.NONE
            for index in indexes
        }
        return _ANSWERS[type(request).__name__](codes)


def _offsets(codes: dict[int, ErrorCode]) -> Message:
    partitions = [
        ListOffsetsPartitionResponse(partition_index=index, error_code=code, offset=_ENDS[index])
        for index, code in codes.items()
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)])


def _producers(codes: dict[int, ErrorCode]) -> Message:
    partitions = [
        PartitionResponse(partition_index=index, error_code=code) for index, code in codes.items()
    ]
    return DescribeProducersResponse(topics=[TopicResponse(name="t", partitions=partitions)])


def _deleted(codes: dict[int, ErrorCode]) -> Message:
    partitions = [
        DeleteRecordsPartitionResult(
            partition_index=index, error_code=code, low_watermark=_ENDS[index]
        )
        for index, code in codes.items()
    ]
    topics = [DeleteRecordsTopicResult(name="t", partitions=partitions)]
    return DeleteRecordsResponse(topics=topics)


_ANSWERS = {
    "ListOffsetsRequest": _offsets,
    "DescribeProducersRequest": _producers,
    "DeleteRecordsRequest": _deleted,
}
_QUESTIONS = [(1, [0, 1]), (1, [1]), (2, [1])]


def test_the_new_leader_of_a_partition_that_moves_is_asked() -> None:
    moving = Moving()
    client = cast("Client", moving)
    assert list_offsets(client, moving.leaders, moving.leaders, LATEST) == {
        ("t", 0): 10,
        ("t", 1): 11,
    }
    assert moving.asked == _QUESTIONS


def test_producers_of_a_partition_that_moves_are_asked_of_its_new_leader() -> None:
    moving = Moving()
    assert describe_producers(cast("Client", moving), moving.leaders, [*moving.leaders]) == []
    assert moving.asked == _QUESTIONS


def test_records_of_a_partition_that_moves_are_deleted_by_its_new_leader() -> None:
    moving = Moving()
    trims = [Trim("t", index, 0, end) for index, end in _ENDS.items()]
    assert trim(cast("Client", moving), moving.leaders, trims) == trims
    assert moving.asked == _QUESTIONS


def test_a_partition_without_a_leader_is_refused_after_the_timeout() -> None:
    moving = Moving(is_for_ever=True)
    with pytest.raises(Refused, match="t-1: NOT_LEADER_OR_FOLLOWER"):
        list_offsets(cast("Client", moving), moving.leaders, moving.leaders, LATEST)
    assert len(moving.asked) > 3
