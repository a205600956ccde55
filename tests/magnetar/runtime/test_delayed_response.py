"""Responses that wait for syncs: in time, too late, or for a client that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from logstore.sync.group_commit import Waiter
from magnetar.runtime.delayed_response import LOOK_S, DelayedResponse, DelayedResponses
from tests.simulation.simulated_loop import SimulatedLoop

T = TypeVar("T")


def simulated(story: Coroutine[None, None, T]) -> T:
    """Return what `story` comes to, its sleeps skipped."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(story)


class Sync:
    """A sync that is over after some seconds, whatever it covers."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, failure: OSError | None = None
    ) -> None:
        self.loop = loop
        self.seconds = seconds
        self.failure = failure

    def when_durable(self, end_offset: int, waiter: Waiter) -> bool:
        self.loop.call_later(self.seconds, waiter, self.failure)
        return True


class World:
    """The delayed responses of a broker, on the running loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.delayed_responses = DelayedResponses(self.loop)

    def delay(
        self, limit_s: float, *after_s: float
    ) -> tuple[DelayedResponse, asyncio.Future[float]]:
        """Return a response that waits for syncs, and a future of when its wait has ended."""
        ended: asyncio.Future[float] = self.loop.create_future()
        response = DelayedResponse(limit_s, lambda is_late: None)
        for seconds in after_s:
            response.wait_for(Sync(self.loop, seconds), 1)
        self.delayed_responses.begin(response, lambda: ended.set_result(self.loop.time()))
        return response, ended

    async def outcome(self, limit_s: float, *after_s: float) -> str:
        """Return how the wait for syncs ended under a limit."""
        response, ended = self.delay(limit_s, *after_s)
        await ended
        return "too late" if response.is_late else "in time"


def test_each_response_has_a_time_limit_of_its_own() -> None:
    async def story() -> list[str]:
        world = World()
        waits = [(1.0, 0.9), (2.0, 9.0), (9.0, 8.9), (30.0, 31.0)]
        return await asyncio.gather(*(world.outcome(*wait) for wait in waits))

    assert simulated(story()) == ["in time", "too late", "in time", "too late"]


@pytest.mark.parametrize("after_s", [(0.3, 0.2, 0.1), (0.1, 0.2, 0.3), (0.3, 0.3, 0.3)])
def test_a_response_waits_for_all_its_syncs_in_whatever_order(after_s: tuple[float, ...]) -> None:
    async def story() -> float:
        world = World()
        _, ended = world.delay(30, *after_s)
        return await ended

    assert simulated(story()) == pytest.approx(0.3)


@pytest.mark.parametrize("limit_s", [1.0, 1.1, 2.25, 30.0])
def test_a_limit_is_met_late_by_one_look_at_most(limit_s: float) -> None:
    async def story() -> float:
        world = World()
        world.delay(60, 50)
        await asyncio.sleep(0.1)
        began_s = world.loop.time()
        assert await world.outcome(limit_s, 40) == "too late"
        return world.loop.time() - began_s

    assert limit_s <= simulated(story()) <= limit_s + LOOK_S


def test_a_response_whose_syncs_are_over_before_its_wait_begins_is_not_late() -> None:
    async def story() -> tuple[float, bool]:
        world = World()
        ended: asyncio.Future[float] = world.loop.create_future()
        response = DelayedResponse(30, lambda is_late: None)
        response.wait_for(Sync(world.loop, 0.1), 1)
        await asyncio.sleep(1)
        world.delayed_responses.begin(response, lambda: ended.set_result(world.loop.time()))
        return await ended, response.is_late

    ended_s, is_late = simulated(story())
    assert ended_s == pytest.approx(1) and not is_late


def test_a_sync_that_fails_ends_the_wait_and_is_left_to_the_response() -> None:
    async def story() -> str:
        world = World()
        failure = OSError("no space left")

        def make(is_late: bool) -> None:
            raise failure

        response = DelayedResponse(30, make)
        response.wait_for(Sync(world.loop, 0, failure), 1)
        response.wait_for(Sync(world.loop, 0), 1)
        ended = world.loop.create_future()
        world.delayed_responses.begin(response, lambda: ended.set_result(None))
        await ended
        with pytest.raises(OSError, match="no space left"):
            response.make(response.is_late)
        return "in time" if not response.is_late else "too late"

    assert simulated(story()) == "in time"


def test_a_cancelled_response_ends_at_once_and_only_once() -> None:
    async def story() -> tuple[bool, bool, float]:
        world = World()
        response, ended = world.delay(1, 0.5)
        response.cancel()
        now_s = await ended
        await asyncio.sleep(2)  # Neither its sync nor its time limit ends it again.
        return response.is_cancelled, response.is_late, now_s

    is_cancelled, is_late, now_s = simulated(story())
    assert (is_cancelled, is_late) == (True, False)
    assert now_s < 0.5


def test_there_is_no_timer_while_no_response_waits() -> None:
    async def story() -> None:
        await World().outcome(1, 0.1)
        # The simulated loop refuses to wait where nothing will ever happen.
        await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="nothing will ever happen"):
        simulated(story())
