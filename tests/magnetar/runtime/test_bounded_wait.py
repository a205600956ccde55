"""Waits bounded by one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from magnetar.runtime.bounded_wait import LOOK_S, BoundedWaits
from tests.simulation.simulated_loop import SimulatedLoop

T = TypeVar("T")


def simulated(story: Coroutine[None, None, T]) -> T:
    """Return what `story` comes to, its sleeps skipped."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(story)


async def bounded_sleep(bounded_waits: BoundedWaits, bound_s: float, sleep_s: float) -> str:
    """Return how a sleep under a bound ended."""
    try:
        with bounded_waits.bounded(bound_s):
            await asyncio.sleep(sleep_s)
    except TimeoutError:
        return "too long"
    return "in time"


def test_each_wait_has_a_bound_of_its_own() -> None:
    async def story() -> list[str]:
        bounded_waits = BoundedWaits()
        waits = [(1.0, 0.9), (2.0, 9.0), (9.0, 8.9), (30.0, 31.0)]
        return await asyncio.gather(*(bounded_sleep(bounded_waits, *wait) for wait in waits))

    assert simulated(story()) == ["in time", "too long", "in time", "too long"]


@pytest.mark.parametrize("bound_s", [1.0, 1.1, 2.25, 30.0])
def test_a_bound_is_met_late_by_one_look_at_most(bound_s: float) -> None:
    async def story() -> float:
        bounded_waits = BoundedWaits()
        looking = asyncio.create_task(bounded_sleep(bounded_waits, 60, 50))
        await asyncio.sleep(0.1)
        began_s = asyncio.get_running_loop().time()
        assert await bounded_sleep(bounded_waits, bound_s, 40) == "too long"
        looking.cancel()
        return asyncio.get_running_loop().time() - began_s

    assert bound_s <= simulated(story()) <= bound_s + LOOK_S


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def story() -> bool:
        bounded_waits = BoundedWaits()
        task = asyncio.create_task(bounded_sleep(bounded_waits, 60, 50))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert simulated(story())


def test_a_wait_that_was_given_up_too_is_cancelled() -> None:
    """Both come in one turn of the event loop: a stop does not become a mere timeout."""

    async def story() -> bool:
        bounded_waits = BoundedWaits()
        task = asyncio.create_task(bounded_sleep(bounded_waits, LOOK_S, 50))
        asyncio.get_running_loop().call_later(LOOK_S, task.cancel)
        await asyncio.wait([task])
        return task.cancelled()

    assert simulated(story())


def test_nobody_looks_while_nobody_waits() -> None:
    async def story() -> None:
        await bounded_sleep(BoundedWaits(), 1, 0.1)
        # The simulated loop refuses to wait where nothing will ever happen.
        await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="nothing will ever happen"):
        simulated(story())
