"""What a later fetch finds of a read that has gone on without its fetch: the bucket was slow."""

from __future__ import annotations

import asyncio

import pytest

from logstore.remote import store_reads
from logstore.segments.ledger import NotReadYet
from tests.logstore.remote.test_offload import World, _small_objects, world
from wire.errors import KafkaError

__all__ = ["_small_objects", "world"]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reads, "_WAIT_S", 0.01)


def hold_answers(world: World) -> asyncio.Future[None]:
    """Let no object be read until the future that is returned resolves."""
    answers: asyncio.Future[None] = asyncio.Future()
    world.objects.on_way = lambda: asyncio.shield(answers)
    return answers


async def test_a_slow_read_goes_on_and_the_next_one_finds_what_came(
    world: World,
) -> None:
    world.append(12)
    assert await world.carried_out()
    answers = hold_answers(world)
    for _ in range(3):
        with pytest.raises(NotReadYet):
            await world.read(0)
    answers.set_result(None)
    await asyncio.sleep(0.02)
    # It is there: nothing is asked again.
    world.objects.loses_request = lambda: True
    assert (await world.read(0)).startswith(world.batches[0])
    with pytest.raises(KafkaError):
        await world.read(0)


async def test_what_came_is_cut_to_the_limits_of_the_fetch_that_takes_it(
    world: World,
) -> None:
    """A read_committed consumer may take what was read for one that sees further."""
    world.append(12)
    assert await world.carried_out()
    answers = hold_answers(world)
    for _ in range(2):
        begun = [asyncio.ensure_future(world.read(0)) for _ in range(2)]
        await asyncio.wait(begun)
        assert {type(one.exception()) for one in begun} == {NotReadYet}
    answers.set_result(None)
    await asyncio.sleep(0.02)
    world.objects.loses_request = lambda: True
    batches = world.ledger.batches
    assert await batches.read_cold(0, 1 << 20, 3) == b"".join(world.batches[:3])
    two = sum(map(len, world.batches[:2]))
    assert await batches.read_cold(0, two, 12) == b"".join(world.batches[:2])


async def test_what_was_begun_before_the_log_was_closed_is_not_found_by_its_next_opening(
    world: World,
) -> None:
    """Another node may have led the log meanwhile."""
    world.append(12)
    assert await world.carried_out()
    answers = hold_answers(world)
    with pytest.raises(NotReadYet):
        await world.read(0)
    answers.set_result(None)
    await world.open_again()
    world.objects.loses_request = lambda: True
    with pytest.raises(KafkaError):
        await world.read(0)


async def test_what_was_read_before_the_cleaner_came_is_read_again(
    world: World,
) -> None:
    """The list of aborted transactions is that of the batches which are there now."""
    world.append(12)
    assert await world.carried_out()
    world.ledger.roll()
    world.append(1)
    answers = hold_answers(world)
    with pytest.raises(NotReadYet):
        await world.read(0)
    await world.clean(0, [world.batches[5], world.batches[11]])
    answers.set_result(None)
    await asyncio.sleep(0.02)
    assert (await world.read(0)).startswith(world.batches[5])
