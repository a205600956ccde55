"""A sweep: which objects it deletes, and how many keys it has in memory."""

from __future__ import annotations

from uuid import UUID

import pytest

from logstore.remote import offload
from logstore.remote.commit_store import StoreUnavailable
from logstore.remote.offload import Sweep
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.logstore.remote.test_offload import PREFIX, World, _nothing, _small_objects, world
from tests.logstore.remote_stores import KEY, NODE

__all__ = ["_small_objects", "world"]

#: The part of keys that names the log of `World`.
KEY_PART = f"{KEY.topic_id}/{KEY.partition}"


async def test_a_sweep_leaves_the_objects_of_other_stores_in_the_bucket_alone(
    world: World,
) -> None:
    world.append(12)
    assert await world.carried_out()
    empty = SimulatedStore(SimulatedDatabase())
    await empty.connect()
    other = Sweep(empty, world.objects, "logs/other", _nothing)
    assert [await other.sweep(), await other.sweep()] == [0, 0]
    assert all(key.startswith(f"{PREFIX}/") for key in world.objects.objects)
    await world.check()


async def test_what_a_replaced_incarnation_left_goes_with_the_first_sweep(world: World) -> None:
    world.append(24)
    assert await world.carried_out()
    named = set(world.objects.objects)
    for incarnation in (0, 1):
        world.objects.objects[f"{PREFIX}/topic/0/0-1-{incarnation}-7"] = b"x"
    world.stepped.database.start_node(NODE, 1)
    sweep = Sweep(world.rows, world.objects, PREFIX, _nothing)
    assert await sweep.sweep() == 1
    assert world.objects.objects.keys() - named == {f"{PREFIX}/topic/0/0-1-1-7"}
    assert await sweep.sweep() == 1
    await world.check()


async def test_a_sweep_has_few_keys_in_memory_however_many_objects_there_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "SWEPT_KEYS", 2)
    for _ in range(3):
        world.append(12)
        assert await world.carried_out()
    named = set(world.objects.objects)
    for number in range(5):
        world.objects.objects[f"{PREFIX}/{UUID(int=9)}/0/0-1-0-{number}"] = b"x"
    sweep = Sweep(world.rows, world.objects, PREFIX, _nothing)
    assert [await sweep.sweep() for _ in range(4)] == [0, 2, 2, 1]
    assert world.objects.objects.keys() == named and len(named) > 2
    await world.check()


async def test_a_sweep_reads_the_references_of_a_large_log_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each hundred thousand of its objects."""
    monkeypatch.setattr(offload, "SWEPT_KEYS", 2)
    for _ in range(12):
        world.append(12)
        assert await world.carried_out()
    assert len(world.objects.objects) > 10
    references = len(world.stepped.database.references())
    before = world.rows.references_read
    sweep = Sweep(world.rows, world.objects, PREFIX, _nothing)
    assert [await sweep.sweep(), await sweep.sweep()] == [0, 0]
    assert world.rows.references_read - before == 2 * references
    await world.check()


@pytest.mark.parametrize(
    "name",
    [
        "²-³-0-1",
        "0-9223372036854775808-0-1",
        "-12-0-1",
        "0-12-²-1",
        "0-12-0-1",
        "00000000000000000000-00000000000000000012-²-1",
    ],
)
@pytest.mark.parametrize("partition", [f"{UUID(int=9)}/²", f"{UUID(int=9)}/2147483648", KEY_PART])
async def test_an_object_with_another_name_is_no_trouble_and_goes(
    world: World, name: str, partition: str
) -> None:
    """Another program may have put one there. It cost the node, or no sweep came to its end."""
    world.append(12)
    assert await world.carried_out()
    named = set(world.objects.objects)
    world.objects.objects[f"{PREFIX}/{partition}/{name}"] = b"x"
    sweep = Sweep(world.rows, world.objects, PREFIX, _nothing)
    assert [await sweep.sweep(), await sweep.sweep()] == [0, 1]
    assert world.objects.objects.keys() == named
    await world.check()


async def test_a_sweep_deletes_nothing_that_it_does_not_understand(world: World) -> None:
    world.append(12)
    assert await world.carried_out()
    log = world.stepped.database._logs[KEY]
    data = bytearray(log.chunks[0].data)
    data[1] = 9
    log.chunks[0] = log.chunks[0]._replace(data=bytes(data))
    sweep = Sweep(world.rows, world.objects, PREFIX, _nothing)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="later release"):
            await sweep.sweep()
    assert len(world.objects.objects) == 1
