"""What is left of deleted topics whose leaders died first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from magnetar.runtime.remains import Remains
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.logs import Logs


class _Logs:
    """What a store has of topics."""

    def __init__(self, *stored: UUID) -> None:
        self.stored = {*stored}

    async def delete_remains(self, topic_ids: Collection[UUID]) -> set[UUID]:
        found = self.stored & {*topic_ids}
        self.stored -= found
        return found


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    opened = Catalog(tmp_path, is_shared=True)
    yield opened
    opened.close()


async def test_deleted_topics_leave_nothing_and_are_forgotten(catalog: Catalog) -> None:
    ids = [uuid4() for _ in range(3)]
    for topic_id in ids:
        catalog.add_topic(TopicRow(topic_id, f"t{topic_id.hex}", 1, 1, False, {}))
    catalog.remove_topics(ids[:2])
    # The first one's leader has deleted it, the second one's has died.
    logs = _Logs(ids[1], ids[2])
    failures: list[BaseException] = []
    remains = Remains(catalog, cast(Logs, cast(Any, logs)), lambda: True, failures.append)
    await remains.look()
    assert logs.stored == {ids[2]}, "what is not deleted stays"
    assert catalog.deleted_topics() == {*ids[:2]}
    # A commit that was on its way when the topic was deleted.
    logs.stored.add(ids[0])
    await remains.look()
    assert logs.stored == {ids[2]}
    assert catalog.deleted_topics() == {*ids[:2]}
    await remains.look()
    assert catalog.deleted_topics() == {*ids[:1]}, "nothing was left of the second one, twice"
    await remains.look()
    assert catalog.deleted_topics() == set()
