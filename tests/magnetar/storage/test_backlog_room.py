"""What waits for a bucket that is away has a bound: above it clients' batches are refused."""

from __future__ import annotations

import json

import pytest

from logstore.disk.room import NoRoom
from logstore.remote import backlog, offload
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.offload import Pace
from magnetar.config.load import Given
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from tests.magnetar.runtime.test_offloading import World
from wire.error_code import ErrorCode

SETTING = "cluster.objects.backlog.max.bytes"
BATCH_BYTES = 980


@pytest.fixture(autouse=True)
def _small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "OBJECT_BYTES", 2_000)
    monkeypatch.setattr(backlog, "WAITING_BYTES", 4_000)
    monkeypatch.setattr("magnetar.storage.remote_logs.SEGMENT_BYTES", 1_000)


def refused(world: World) -> NoRoom | None:
    """Return what a client's batch meets, a second later."""
    world.clock.ms += 1_000
    try:
        world.logs.room.check(BATCH_BYTES, world.clock.ms)
    except NoRoom as refusal:
        return refusal
    return None


async def test_clients_are_refused_while_too_much_waits_and_coordinators_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(Given(SETTING, "8000", "test"))
    offloading = await world.start()
    for name in ("a", "b", CONSUMER_OFFSETS):
        world.topics.create(name, 1)
    a, b, offsets = (world.topics.partition(each, 0) for each in ("a", "b", CONSUMER_OFFSETS))
    world.objects.loses_request = lambda: True
    # A coordinator's log is no client's, and small logs are no backlog.
    await world.append(offsets, 20)
    await world.append(b, 4)
    await world.append(a, 10)
    assert refused(world) is None
    await world.append(a, 3)
    with pytest.raises(ObjectsUnavailable):
        await offloading.move()
    refusal = refused(world)
    assert refusal is not None and refusal.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "bytes wait in the database for the bucket" in refusal.detail
    assert f"{SETTING}=8000" in refusal.detail
    # The bound does not hold for the broker's own records.
    await world.append(offsets, 1)
    assert refused(world) is not None

    world.objects.loses_request = lambda: False
    world.clock.ms += 1000 * int(Pace().retry_s[0])
    await offloading.move()
    assert refused(world) is None
    told = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert [each.split(":")[0] for each in told] == [
        "batches stay in the database",
        "too much waits in the database for the bucket",
        "batches move to the bucket again",
        "the bucket has taken enough",
    ]
    await world.stop()
    assert world.failures == []


async def test_0_is_no_bound(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(Given(SETTING, "0", "test"))
    await world.start()
    world.topics.create("a", 1)
    await world.append(world.topics.partition("a", 0), 40)
    assert refused(world) is None
    assert capsys.readouterr().err == ""
    await world.stop()
