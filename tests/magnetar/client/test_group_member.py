"""What a leader assigns, and how a member asks for its offsets."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.client.errors import Refused
from magnetar.client.group_member import GroupMember, assign_by_range
from wire.error_code import ErrorCode
from wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)


def test_ranges_are_shared_out_topic_by_topic() -> None:
    wanted = {"a": ["y", "x"], "b": ["y"], "c": ["x", "y", "z"]}
    assert assign_by_range(wanted, {"a": 3, "b": 1, "c": 2}) == {
        "x": [("a", 0), ("a", 1), ("c", 0)],
        "y": [("a", 2), ("b", 0), ("c", 1)],
        "z": [],
    }


class MovingCoordinator:
    """A cluster whose group coordinator moves, loads, waits for a transaction, and then answers."""

    timeout_s = 30.0

    def __init__(self, *codes: tuple[int, int]) -> None:
        """`codes`: of the group and of its partition, one pair for each answer before the last."""
        self.codes = list(codes)
        self.asked: list[int | None] = []
        self.found = 0

    def group_coordinator_of(self, _: str) -> int:
        self.found += 1
        return self.found

    def call(self, *_: object, node_id: int | None, **__: object) -> OffsetFetchResponse:
        self.asked.append(node_id)
        code, partition_code = self.codes.pop(0) if self.codes else (0, 0)
        partition = OffsetFetchResponsePartition(
            partition_index=0, committed_offset=5, error_code=partition_code
        )
        topic = OffsetFetchResponseTopic(name="a", partitions=[partition])
        return OffsetFetchResponse(error_code=code, topics=[topic])


def test_a_member_waits_for_a_coordinator_that_moves_or_loads() -> None:
    client: Any = MovingCoordinator(
        (ErrorCode.NOT_COORDINATOR, 0),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0),
        (0, ErrorCode.UNSTABLE_OFFSET_COMMIT),
    )
    member = GroupMember(client, "group", ["a"], _coordinator=0)
    assert member.committed([("a", 0)]) == {("a", 0): 5}
    assert client.asked == [0, 1, 2, 2]


def test_a_member_is_told_what_time_does_not_mend() -> None:
    client: Any = MovingCoordinator((ErrorCode.GROUP_AUTHORIZATION_FAILED, 0))
    with pytest.raises(Refused, match="the offsets of group g"):
        GroupMember(client, "g", ["a"], _coordinator=0).committed([("a", 0)])
    assert client.asked == [0]
