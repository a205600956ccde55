"""Requests that wait while what they are for moves between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from coordinator.transactions.metadata import TopicPartition
from magnetar.storage.moving_partitions import MovingPartitions

ONE, TWO, THREE = (TopicPartition("a", index) for index in range(3))
PATIENCE_S = 30.0


class World:
    """What has gone on, in order."""

    def __init__(self) -> None:
        self.moving = MovingPartitions()
        self.gone_on: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def ask(self, name: str, *partitions: TopicPartition, timeout_s: float = PATIENCE_S) -> None:
        """Begin a request for these partitions, as one that has just arrived does."""
        if self.moving.hold(partitions):
            work = self._go_on(name, self.moving.settled(partitions, timeout_s))
            self._tasks.append(asyncio.create_task(work))
        else:
            self.gone_on.append(name)

    async def _go_on(self, name: str, settled: Coroutine[Any, Any, None]) -> None:
        await settled
        self.gone_on.append(name)

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)


@pytest.fixture
async def world() -> World:
    return World()


async def test_only_requests_for_what_moves_wait(world: World) -> None:
    world.ask("before", ONE)
    with world.moving.moving([ONE, TWO]):
        world.ask("first", ONE, TWO)
        world.ask("another", THREE)
        world.ask("second", TWO)
        await asyncio.sleep(0)
        assert world.gone_on == ["before", "another"]
    await world.ended()
    assert world.gone_on == ["before", "another", "first", "second"]
    assert not world.moving.are_any
    world.ask("after", ONE)
    assert world.gone_on[-1] == "after"


async def test_a_request_waits_for_all_that_it_is_for(world: World) -> None:
    with world.moving.moving([ONE, TWO]) as settle:
        world.ask("both", ONE, TWO)
        world.ask("one", ONE)
        await asyncio.sleep(0)
        settle(ONE)
        settle(ONE)  # Which counts once.
        for _ in range(10):
            await asyncio.sleep(0)
        assert world.gone_on == ["one"]
    await world.ended()
    assert world.gone_on == ["one", "both"]


async def test_what_comes_back_while_it_is_handed_over_moves_still(world: World) -> None:
    with world.moving.moving([ONE]) as loaded:
        with world.moving.moving([ONE]):
            world.ask("one", ONE)
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not world.gone_on
        loaded(ONE)
        await world.ended()
    assert world.gone_on == ["one"] and not world.moving.are_any


async def test_no_request_waits_for_ever(world: World) -> None:
    with world.moving.moving([ONE]):
        world.ask("patient", ONE)
        world.ask("hasty", ONE, timeout_s=0.01)
        async with asyncio.timeout(PATIENCE_S):
            while not world.gone_on:
                await asyncio.sleep(0.001)
        assert world.gone_on == ["hasty"]
    await world.ended()
    assert world.gone_on == ["hasty", "patient"]


async def test_a_move_that_fails_lets_its_requests_go_on(world: World) -> None:
    with pytest.raises(OSError), world.moving.moving([ONE]):
        world.ask("waiting", ONE)
        await asyncio.sleep(0)
        raise OSError
    await world.ended()
    assert world.gone_on == ["waiting"]


async def test_a_client_that_has_gone_leaves_nothing_behind(world: World) -> None:
    with world.moving.moving([ONE]):
        world.ask("gone", ONE)
        await asyncio.sleep(0)
        world._tasks[0].cancel()
        await asyncio.gather(*world._tasks, return_exceptions=True)
    assert not world.moving._waiters and not world.gone_on
