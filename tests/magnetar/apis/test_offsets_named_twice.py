"""OffsetFetch answers each partition once, however often a request names it.

An answer may bring 4 KB of metadata. A request of 480 KB that named one partition 120,000 times was
answered with 494 MB, for which the broker took 2.2 GB.
"""

from __future__ import annotations

import pytest

from coordinator.groups.committing import Committer
from coordinator.groups.offsets.committed import CommittedOffset
from magnetar.broker import Broker
from tests.magnetar.committing import durably
from tests.magnetar.conftest import RawClient
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

GROUP = "group"
NAMED = ([0, 1, 0, 0], [1, 2, 2], [2])
ANSWERED = [0, 1, 2]


async def commit(broker: Broker) -> None:
    broker.topics.create("a", 3)
    commits = [("a", index, CommittedOffset(index)) for index in range(3)]
    committer = Committer(group_id=GROUP)
    await durably(broker.groups.offsets.commit(committer, commits, knows_group_not_found=True))


async def test_partitions_of_one_group(broker: Broker, client: RawClient) -> None:
    await commit(broker)
    named = [OffsetFetchRequestTopic(name="a", partition_indexes=indexes) for indexes in NAMED]
    request = OffsetFetchRequest(group_id=GROUP, topics=named)
    response = await client.ask(request, 7, OffsetFetchResponse)
    found = [each for topic in response.topics for each in topic.partitions]
    assert [each.partition_index for each in found] == ANSWERED
    assert [each.committed_offset for each in found] == ANSWERED


@pytest.mark.parametrize("version", [8, 10])
async def test_partitions_of_groups_that_are_named_twice(
    broker: Broker, client: RawClient, version: int
) -> None:
    await commit(broker)
    topic = broker.topics.by_name("a")
    assert topic is not None
    topics = [
        OffsetFetchRequestTopics(topic_id=topic.id, partition_indexes=indexes)
        if version == 10
        else OffsetFetchRequestTopics(name="a", partition_indexes=indexes)
        for indexes in NAMED
    ]
    groups = [
        OffsetFetchRequestGroup(group_id=group_id, topics=topics)
        for group_id in (GROUP, GROUP, "another")
    ]
    response = await client.ask(OffsetFetchRequest(groups=groups), version, OffsetFetchResponse)
    indexes = [
        [each.partition_index for topic in group.topics for each in topic.partitions]
        for group in response.groups
    ]
    assert indexes == [ANSWERED, [], ANSWERED]
