"""Offsets belong to a topic, not to its name: what a crash leaves of a former one is not shown."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from uuid import UUID

import pytest

from coordinator.groups.committing import Committer
from coordinator.groups.offsets.committed import CommittedOffset
from coordinator.groups.offsets.store import FetchedOffset
from magnetar.broker import Broker
from magnetar.runtime.group_offsets import OffsetQuery
from tests.magnetar.committing import durably

GROUP = "group"


async def commit(broker: Broker, topic_id: UUID, offset: int) -> None:
    committed = CommittedOffset(offset, topic_id=topic_id)
    commits = [("orders", index, committed) for index in range(2)]
    await durably(
        broker.groups.offsets.commit(Committer(group_id=GROUP), commits, knows_group_not_found=True)
    )


async def fetched(broker: Broker) -> list[int]:
    asked = [OffsetQuery("orders", (0, 1))]
    (found,) = await broker.groups.offsets.fetch(GROUP, asked, require_stable=False)
    return [each.offset for each in found.fetched()]


async def everything(broker: Broker) -> dict[str, list[FetchedOffset]]:
    found = await broker.groups.offsets.fetch_all(GROUP, require_stable=False)
    return {topic: looked_up.fetched() for topic, looked_up in found.items()}


async def test_a_topic_made_anew_does_not_inherit_offsets(broker: Broker) -> None:
    former = broker.topics.create("orders", 2)
    await commit(broker, former.id, 7)
    broker.topics.deletion.on_deleted.clear()  # The crash: the topic is gone, its offsets are not.
    await broker.topics.deletion.perform([former])
    topic = broker.topics.create("orders", 2)
    assert await fetched(broker) == [-1, -1]
    assert await everything(broker) == {}
    await commit(broker, topic.id, 3)
    assert await fetched(broker) == [3, 3]
    assert [each.offset for each in (await everything(broker))["orders"]] == [3, 3]


async def test_offsets_without_a_topic_id_go_by_the_name(broker: Broker) -> None:
    """As Kafka wrote them before version 4 of the record."""
    broker.topics.create("orders", 2)
    await commit(broker, UUID(int=0), 7)
    assert await fetched(broker) == [7, 7]


async def test_a_deleted_topic_takes_its_offsets_along(broker: Broker) -> None:
    topic = broker.topics.create("orders", 2)
    await commit(broker, topic.id, 7)
    await broker.topics.deletion.perform([topic])
    assert await fetched(broker) == [-1, -1]
    assert not broker.groups.shards.of(GROUP).state.offsets.has_group(GROUP)


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("topic_count", [1, 10])
async def test_many_offsets_of_deleted_topics_go_in_turns(broker: Broker, topic_count: int) -> None:
    """Over all topics that one request deletes."""
    topics = [broker.topics.create(f"t{number}", 1) for number in range(topic_count)]
    count = 1_000
    offsets = broker.groups.offsets
    for number in range(count):
        topic = topics[number % topic_count]
        committed = CommittedOffset(7, topic_id=topic.id)
        committer = Committer(group_id=f"g{number}")
        await durably(
            offsets.commit(committer, [(topic.name, 0, committed)], knows_group_not_found=True)
        )
    left = [count]
    for topic in topics:
        offsets.on_topic_deleted(topic.name, topic.id)
    while left[-1]:
        left.append(sum(shard.state.offsets.group_count for shard in broker.groups.shards))
        await asyncio.sleep(0)
    # A few steps of 64: a turn is over once it is asked about again.
    assert max(before - after for before, after in pairwise(left)) <= 256
