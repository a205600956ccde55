"""How much of its logs a node of a cluster has in the database, as metrics tell it."""

from __future__ import annotations

import pytest

from logstore.remote import offload
from magnetar.metrics import gathering
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from tests.magnetar.runtime.test_offloading import World


async def told(world: World) -> dict[str, float]:
    metrics = await gathering._partitions(world.topics.all(), has_bucket=True)
    (metric,) = [one for one in metrics if one.name == "magnetar_database_bytes"]
    return {one.labels["until"]: one.value for one in metric.samples}


async def test_what_moved_to_the_bucket_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "OBJECT_BYTES", 4_000)
    monkeypatch.setattr("magnetar.storage.remote_logs.SEGMENT_BYTES", 2_000)
    world = World()
    offloading = await world.start()
    for name in ("a", CONSUMER_OFFSETS):
        world.topics.create(name, 1)
        await world.append(world.topics.partition(name, 0), 8)
    a, offsets = (world.topics.partition(name, 0) for name in ("a", CONSUMER_OFFSETS))
    assert await told(world) == {"bucket": a.size_bytes, "retention": offsets.size_bytes}
    await offloading.move()
    after = await told(world)
    # Up to a segment more than what was not moved.
    assert after["bucket"] <= a.size_bytes - 4_000 + 2_000
    assert after["retention"] == offsets.size_bytes
    await world.stop()
