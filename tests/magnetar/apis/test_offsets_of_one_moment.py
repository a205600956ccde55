"""OffsetFetch of several topics sees a commit of all of them whole, or not at all, as in Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.groups.committing import Committer
from coordinator.groups.offsets.committed import CommittedOffset
from coordinator.groups.offsets.store import GroupOffsets
from magnetar.broker import Broker
from magnetar.runtime import turns
from magnetar.runtime.group_offsets import Committed, OffsetQuery
from magnetar.runtime.shard import RunningShard
from tests.magnetar.committing import durably
from tests.magnetar.conftest import RawClient
from wire.error_code import ErrorCode
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

GROUP = "group"
NAMES = ["a", "b", "c"]
VERSIONS = [7, 8, 10]


@pytest.fixture(autouse=True)
def topics(broker: Broker) -> None:
    for name in NAMES:
        broker.topics.create(name, 1)


def commits_of(offset: int) -> list[tuple[str, int, CommittedOffset]]:
    return [(name, 0, CommittedOffset(offset)) for name in NAMES]


def commit(broker: Broker, offset: int) -> Committed:
    return broker.groups.offsets.commit(
        Committer(group_id=GROUP), commits_of(offset), knows_group_not_found=True
    )


def meanwhile(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Let `change` happen wherever a request lets others go on."""
    durable, give_up = RunningShard.durable, turns.Turns.give_up

    def changed_before_durable(shard: RunningShard[Any, Any], end_offset: int) -> Any:
        change()
        return durable(shard, end_offset)

    async def changed_before_turn(self: turns.Turns) -> None:
        change()
        await give_up(self)

    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(turns.Turns, "give_up", changed_before_turn)
    monkeypatch.setattr(RunningShard, "durable", changed_before_durable)


async def fetched(broker: Broker, client: RawClient, version: int) -> list[int]:
    """Return the offset of each topic, or its error."""
    ids = [topic.id for name in NAMES if (topic := broker.topics.by_name(name)) is not None]
    group = OffsetFetchRequestGroup(
        group_id=GROUP,
        topics=[
            OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
            if version == 10
            else OffsetFetchRequestTopics(name=name, partition_indexes=[0])
            for name, topic_id in zip(NAMES, ids, strict=True)
        ],
    )
    request = OffsetFetchRequest(require_stable=True, groups=[group])
    if version < 8:
        named = [OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in NAMES]
        request = OffsetFetchRequest(group_id=GROUP, topics=named, require_stable=True)
    response = await client.ask(request, version, OffsetFetchResponse)
    found = response.topics if version < 8 else response.groups[0].topics
    partitions = [partition for topic in found for partition in topic.partitions]
    return [each.error_code or each.committed_offset for each in partitions]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_commit_of_several_topics_is_not_seen_half(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    await durably(commit(broker, 1))
    offsets = iter(range(2, 1000))
    meanwhile(monkeypatch, lambda: commit(broker, next(offsets)))
    found = await fetched(broker, client, version)
    assert len(found) == len(NAMES)
    assert len(set(found)) == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_end_of_a_transaction_is_not_seen_half(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    producer = (1000, 0)
    await durably(
        broker.groups.offsets.commit_in_transaction(
            Committer(group_id=GROUP), *producer, commits_of(7), knows_group_not_found=True
        )
    )
    state = broker.groups.shards.of(GROUP).state
    meanwhile(monkeypatch, lambda: state.apply_marker(*producer, commit=True))
    found = await fetched(broker, client, version)
    assert found in ([7] * 3, [ErrorCode.UNSTABLE_OFFSET_COMMIT] * 3)


@pytest.mark.parametrize("require_stable", [False, True])
async def test_topics_of_which_the_group_has_nothing_are_not_looked_up_in_the_one_step(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, require_stable: bool
) -> None:
    await durably(commit(broker, 5))
    looked_up: list[str] = []
    look_up = GroupOffsets.look_up

    def counted(self: GroupOffsets, group_id: str, topic: str, *rest: Any, **stable: Any) -> Any:
        looked_up.append(topic)
        return look_up(self, group_id, topic, *rest, **stable)

    monkeypatch.setattr(GroupOffsets, "look_up", counted)
    asked = [OffsetQuery(name, [0, 1]) for name in (*NAMES, *map(str, range(1000)))]
    found = await broker.groups.offsets.fetch(GROUP, asked, require_stable=require_stable)
    assert looked_up == NAMES
    assert [[each.offset for each in one.fetched()] for one in found[2:4]] == [[5, -1], [-1, -1]]


async def test_offsets_of_all_topics_keep_the_ids_that_their_topics_had(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await durably(commit(broker, 5))
    ids = {topic.id for topic in broker.topics.all() if topic.name in NAMES}
    offsets = broker.groups.offsets
    fetch_all = offsets.fetch_all

    async def replaced_meanwhile(group_id: str, *, require_stable: bool) -> Any:
        found = await fetch_all(group_id, require_stable=require_stable)
        await broker.topics.deletion.perform(
            [topic for topic in broker.topics.all() if topic.name == "a"]
        )
        broker.topics.create("a", 1)
        return found

    monkeypatch.setattr(offsets, "fetch_all", replaced_meanwhile)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
    (group,) = (await client.ask(request, 10, OffsetFetchResponse)).groups
    assert {topic.topic_id for topic in group.topics} == ids
