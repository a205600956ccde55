"""Partitions that come to a node: when requests find them open."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from logstore.remote.commit_store import StoredLog, Wanted
from magnetar.storage.led_partitions import Leaving
from tests.magnetar.runtime.test_late_openings import World


async def test_what_is_loaded_does_not_wait_for_what_comes_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    topics = await world.start()
    topic = topics.create("a", 40)
    leaving = [Leaving(topic, partition, 2) for partition in range(40)]
    await topics.led.close(topics.led.leave(leaving))
    store, led = world.logs.bulk_store, list[int]()
    assert store is not None
    load = store.load

    async def noting(wanted: Sequence[Wanted]) -> list[StoredLog]:
        led.append(len(topic.local))
        return await load(wanted)

    monkeypatch.setattr(store, "load", noting)
    await topics.refresh([topic.id])
    assert led == [0, 16, 32] and len(topic.local) == 40
    await world.stop()
    assert world.failures == []
