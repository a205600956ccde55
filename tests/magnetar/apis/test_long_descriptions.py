"""Requests that name what they ask about a hundred thousand times: that is read in turns, too."""

from __future__ import annotations

import pytest

from magnetar.apis import describe_topic_partitions as describe_topic_partitions_api
from magnetar.apis import metadata as metadata_api
from magnetar.broker import Broker
from tests.magnetar.conftest import RawClient
from wire.message import Message
from wire.messages import (
    describe_log_dirs,
    describe_topic_partitions,
    list_partition_reassignments,
    metadata,
    update_features,
)

#: Sixteen pieces, and the first may need no turn.
COUNT = 4_000
NAMES = [f"there-is-none-{number}" for number in range(COUNT)]

#: Each with its version, and how long a step it took for 40,000 to 60,000 names.
LONG: list[tuple[Message, int]] = [
    # 48 ms.
    (
        update_features.UpdateFeaturesRequest(
            feature_updates=[
                update_features.FeatureUpdateKey(
                    feature="group.version", max_version_level=1, upgrade_type=1
                )
                for _ in NAMES
            ]
        ),
        1,
    ),
    # 65 ms.
    (
        describe_log_dirs.DescribeLogDirsRequest(
            topics=[describe_log_dirs.DescribableLogDirTopic(topic=name) for name in NAMES]
        ),
        4,
    ),
    # 25 ms.
    (
        list_partition_reassignments.ListPartitionReassignmentsRequest(
            topics=[
                list_partition_reassignments.ListPartitionReassignmentsTopics(name=name)
                for name in NAMES
            ]
        ),
        0,
    ),
]


@pytest.mark.parametrize(("request_", "version"), LONG, ids=lambda each: type(each).__name__)
async def test_a_long_list_is_read_in_turns(
    client: RawClient, given_up: list[None], request_: Message, version: int
) -> None:
    client.send(request_, version)
    await client.receive()
    assert len(given_up) >= COUNT // 512


async def test_many_names_are_sorted_in_turns(
    client: RawClient, given_up: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe_topic_partitions_api, "_SORTED_AT_ONCE", 10)
    names = NAMES[:400]
    topics = [describe_topic_partitions.TopicRequest(name=name) for name in [*names[::-1], *names]]
    asked = describe_topic_partitions.DescribeTopicPartitionsRequest(topics=topics)
    response_class = describe_topic_partitions.DescribeTopicPartitionsResponse
    answer = await client.ask(asked, 0, response_class)
    assert [each.name for each in answer.topics] == sorted(names)
    # The runs and their merge, beside the topics, which are looked up one by one. A turn that was
    # given up begins another one, which is over at the second look.
    assert len(given_up) > 400


async def test_a_large_topic_is_described_in_turns(
    broker: Broker, client: RawClient, given_up: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 2,000 partitions was a step of 6 ms; replicas of 9,000, one of 5 ms and more."""
    broker.topics.create("large", 600)
    told: list[int] = []
    for api in (describe_topic_partitions_api, metadata_api):
        monkeypatch.setattr(api, "tell_replicas", lambda _, topic, some: told.append(len(some)))
    page = describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[describe_topic_partitions.TopicRequest(name="large")]
    )
    await client.ask(page, 0, describe_topic_partitions.DescribeTopicPartitionsResponse)
    assert given_up
    await client.ask(metadata.MetadataRequest(topics=None), 12, metadata.MetadataResponse)
    assert told == [256, 256, 88] * 2
