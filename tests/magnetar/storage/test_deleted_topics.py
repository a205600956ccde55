"""Topics that are deleted: how many leave the catalog together, and how a large one is freed."""

from __future__ import annotations

import asyncio
import weakref
from uuid import UUID

import pytest

from magnetar.broker import Broker
from magnetar.storage import topics
from magnetar.storage.database import CatalogUnavailable


async def test_many_topics_leave_the_catalog_by_several_transactions(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for ten thousand takes longer than a call to the catalog of a cluster may."""
    monkeypatch.setattr(topics, "_REMOVED_TOGETHER", 2)
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
        await broker.topics.delete(made)
    assert broker.topics.all() == made[4:] and not made[4].local[0].is_gone
    assert await broker.topics.delete(made) == ids[4:]
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
    deleting = asyncio.ensure_future(broker.topics.delete([topic]))
    left = []
    while not deleting.done():
        await asyncio.sleep(0)
        left.append(len(living))
    assert [*dict.fromkeys(left)] == [40, 24, 8, 0]
    assert len(topic.partitions) == 40 and not topic.local
