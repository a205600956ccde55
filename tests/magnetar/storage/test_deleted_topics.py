"""Topics that are deleted together: how they leave the catalog."""

from __future__ import annotations

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
