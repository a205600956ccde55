"""A small request that names something large again and again: the answer stays within a bound."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.apis import describe_configs
from magnetar.broker import Broker
from wire.error_code import ErrorCode
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from wire.resource_type import ResourceType


async def test_all_offsets_of_a_group_are_answered_once(broker: Broker, client: Any) -> None:
    broker.topics.create("orders", 1)
    place = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    for group_id in ("a", "b"):
        commit = OffsetCommitRequest(
            group_id=group_id, topics=[OffsetCommitRequestTopic(name="orders", partitions=[place])]
        )
        await client.ask(commit, 8, OffsetCommitResponse)
    named = OffsetFetchRequestTopics(name="orders", partition_indexes=[0])
    groups = [
        *[OffsetFetchRequestGroup(group_id="a", topics=None)] * 100,
        OffsetFetchRequestGroup(group_id="a", topics=[named]),
        OffsetFetchRequestGroup(group_id="b", topics=None),
    ]
    answer = await client.ask(OffsetFetchRequest(groups=groups), 8, OffsetFetchResponse)
    assert [group.group_id for group in answer.groups] == ["a", "a", "b"]
    assert [g.topics[0].partitions[0].committed_offset for g in answer.groups] == [7, 7, 7]


async def test_a_group_is_described_once(client: Any) -> None:
    request = DescribeGroupsRequest(groups=["a", *["b"] * 100, "a"])
    answer = await client.ask(request, 5, DescribeGroupsResponse)
    assert [group.group_id for group in answer.groups] == ["a", "b"]


async def test_settings_beyond_the_bound_are_not_described(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = DescribeConfigsResource(resource_type=ResourceType.GROUP, resource_name="g")

    async def ask(times: int) -> list[Any]:
        request = DescribeConfigsRequest(resources=[group] * times)
        answer = await client.ask(request, 4, DescribeConfigsResponse)
        results: list[Any] = answer.results
        return results

    (one,) = await ask(1)
    monkeypatch.setattr(describe_configs, "ENTRIES_MAX", 3 * len(one.configs))
    assert [result.error_code for result in await ask(3)] == [ErrorCode.NONE] * 3
    refused = await ask(4)
    assert [result.error_code for result in refused] == [ErrorCode.INVALID_REQUEST] * 4
    assert not any(result.configs for result in refused)
