"""Topics that are deleted: gone in one step, many by few transactions, and freed in turns."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from magnetar.broker import Broker
from magnetar.storage import topic_deletion
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.topic import Topic
from wire.records import SimpleRecord, build_batch

StartBroker = Callable[..., Awaitable[Broker]]

ON_DISK = {"durability": "page-cache"}


async def test_many_topics_leave_the_catalog_by_several_transactions(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for ten thousand takes longer than a call to the catalog of a cluster may."""
    monkeypatch.setattr(topic_deletion, "_REMOVED_TOGETHER", 2)
    remove, asked = broker.catalog.remove_topics, list[tuple[list[UUID], list[UUID]]]()

    def removing(ids: list[UUID], gone: list[UUID]) -> None:
        asked.append((ids, gone))
        if len(asked) == 3:
            raise CatalogUnavailable("no answer")
        remove(ids, gone)

    monkeypatch.setattr(broker.catalog, "remove_topics", removing)
    made = [broker.topics.create(f"t{number}") for number in range(5)]
    ids = [topic.id for topic in made]
    with pytest.raises(CatalogUnavailable):
        await broker.topics.deletion.perform(made)
    assert broker.topics.all() == made[4:] and not made[4].local[0].is_gone
    assert await broker.topics.deletion.perform(made) == ids[4:]
    assert asked == [
        (ids[:2], []),
        (ids[2:4], ids[:2]),
        (ids[4:], ids[2:4]),
        (ids[4:], ids[2:4]),
    ]


async def test_the_logs_of_a_large_topic_are_freed_some_in_each_turn(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that has the topic would free them all at once, when it ends."""
    monkeypatch.setattr("magnetar.storage.topic._FREED_TOGETHER", 16)
    topic = broker.topics.create("a", 40)
    living = weakref.WeakSet(topic.local)
    deleting = asyncio.ensure_future(broker.topics.deletion.perform([topic]))
    left = []
    while not deleting.done():
        await asyncio.sleep(0)
        left.append(len(living))
    assert [*dict.fromkeys(left)] == [40, 24, 8, 0]
    assert len(topic.partitions) == 40 and not topic.local


async def test_a_deleted_topic_is_gone_and_may_be_made_again(broker: Broker) -> None:
    gone: list[Topic] = []
    broker.topics.deletion.on_deleted.append(gone.append)
    topic = broker.topics.create("a")
    (log,) = topic.local
    await broker.topics.deletion.perform([topic])
    assert gone == [topic] and log.is_gone
    assert broker.topics.by_name("a") is None
    assert broker.topics.by_id(topic.id) is None
    assert broker.topics.create("a").id != topic.id


async def test_topics_that_are_deleted_together_go_and_are_freed_some_in_each_turn(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_deletion, "_PARTITIONS_A_TURN", 16)
    made = (broker.topics.create(f"t{number}", 8) for number in range(5))
    living = weakref.WeakSet(topic.local[0] for topic in made)
    seen: list[tuple[int, int]] = []
    turn = 0
    broker.topics.deletion.on_deleted.append(lambda _: seen.append((turn, len(living))))
    deleting = asyncio.ensure_future(broker.topics.deletion.perform(iter(broker.topics.all())))
    while not deleting.done():
        await asyncio.sleep(0)
        turn += 1
    assert [left for _, left in seen] == [5, 5, 3, 3, 1]
    assert len({at for at, _ in seen}) == 3


@pytest.mark.parametrize("durability", ["fsync", "page-cache", "memory"])
async def test_a_deleted_topic_leaves_no_work_to_the_garbage_collection(
    start_broker: StartBroker, durability: str
) -> None:
    broker = await start_broker({"durability": durability})
    topic = broker.topics.create("a", 2)
    for log in topic.local:
        await log.durable(
            log.append(log.check(build_batch([SimpleRecord(None, b"v", 1)]), 1)).end_offset
        )
    held = [weakref.ref(each) for log in topic.local for each in (log, log.ledger)]
    gc.collect()
    gc.disable()
    try:
        await broker.topics.deletion.perform([topic])
        del topic, log
        # The step in which the deletion ends holds the topic, too.
        await asyncio.sleep(0)
        assert [ref() for ref in held] == [None] * len(held)
    finally:
        gc.enable()


async def test_deleted_topics_are_remembered_until_their_files_are_gone(
    start_broker: StartBroker,
) -> None:
    first = await start_broker(ON_DISK)
    for name in "abc":
        topic = first.topics.create(name)
        await first.topics.deletion.perform([topic])
        assert first.catalog.deleted_topics() == {topic.id}
    await first.stop()
    second = await start_broker(ON_DISK)
    assert second.catalog.deleted_topics() == set()
