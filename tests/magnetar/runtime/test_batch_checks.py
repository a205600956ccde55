"""Requests of one connection that wait, and those behind them: in order, together, none lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from magnetar.runtime.background import WholeWork
from magnetar.runtime.batch_checks import BatchChecks, Steps
from magnetar.runtime.request_context import Connection
from magnetar.runtime.turns import Turns
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.produce import ProduceResponse


class World:
    """One connection, whose first request waits for `answered`."""

    def __init__(self, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self.failures: list[BaseException] = []
        self.checks = BatchChecks(WholeWork(self.failures.append), Turns(now_s))
        self.connection = cast("Connection", object())
        self.answered = asyncio.Event()
        #: What was appended, each with the step of the event loop.
        self.appended: list[tuple[str, int]] = []
        self.step = 0
        self._count_steps()

    def _count_steps(self) -> None:
        self.step += 1
        asyncio.get_running_loop().call_soon(self._count_steps)

    def steps(self, name: str, *waits: Callable[[], Awaitable[Any]]) -> Steps:
        for wait in waits:
            _ = yield wait
        self.appended.append((name, self.step))

    def begin(self, name: str, *waits: Callable[[], Awaitable[Any]]) -> asyncio.Task[object]:
        response = ProduceResponse(throttle_time_ms=len(name))
        performed = self.checks.perform(
            self.connection, None, self.steps(name, *waits), lambda: response
        )
        return asyncio.create_task(performed)

    def first(self) -> asyncio.Task[object]:
        return self.begin("first", self.answered.wait)


async def some_steps() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_behind_a_request_that_waits_go_on_with_it_in_one_step() -> None:
    world = World()
    tasks = [world.first(), *(world.begin(name) for name in ("second", "third"))]
    await some_steps()
    assert world.connection in world.checks.queues and not world.appended
    world.answered.set()
    responses = await asyncio.gather(*tasks)
    assert [name for name, _ in world.appended] == ["first", "second", "third"]
    assert len({step for _, step in world.appended}) == 1
    assert [cast("ProduceResponse", one).throttle_time_ms for one in responses] == [5, 6, 5]
    assert world.connection not in world.checks.queues


async def test_a_turn_that_is_over_is_given_up_between_two_requests() -> None:
    now_s = iter(range(100))
    world = World(lambda: next(now_s))
    tasks = [world.first(), *(world.begin(name) for name in ("second", "third"))]
    world.answered.set()
    await asyncio.gather(*tasks)
    assert [name for name, _ in world.appended] == ["first", "second", "third"]
    assert len({step for _, step in world.appended}) > 1


async def test_a_request_whose_client_has_gone_is_carried_out_and_holds_up_none() -> None:
    world = World()
    gone, other = world.first(), world.begin("other")
    await some_steps()
    gone.cancel()
    world.answered.set()
    await other
    assert [name for name, _ in world.appended] == ["first", "other"]
    assert not world.failures


async def test_what_fails_a_request_is_told_to_it_alone() -> None:
    world = World()

    async def fail() -> Message:
        raise ValueError("a bug")

    failing, other = world.begin("failing", fail), world.begin("other")
    with pytest.raises(ValueError, match="a bug"):
        await failing
    await other
    assert [name for name, _ in world.appended] == ["other"]
    assert not world.failures


async def test_what_fails_a_request_whose_client_has_gone_ends_the_broker() -> None:
    world = World()

    async def fail() -> Message:
        await world.answered.wait()
        raise ValueError("a bug")

    failing = world.begin("failing", fail)
    await some_steps()
    failing.cancel()
    world.answered.set()
    await some_steps()
    assert [str(failure) for failure in world.failures] == ["a bug"]


async def test_a_refused_batch_does_not_keep_those_before_it() -> None:
    """A refusal has up to a thousand records, and a request a hundred thousand batches."""
    refusals: list[KafkaError] = []

    async def refused() -> None:
        raise KafkaError(ErrorCode.INVALID_RECORD)

    def steps() -> Steps:
        for _ in range(2):
            try:
                try:
                    raise ValueError  # It takes long.
                except ValueError:
                    yield refused
            except KafkaError as refusal:
                refusals.append(refusal)

    world = World()
    await world.checks.perform(world.connection, None, steps(), lambda: None)
    first, second = refusals
    earlier: BaseException | None = second
    while earlier is not None:
        assert earlier is not first
        earlier = earlier.__context__
