"""A timer of microseconds: never early, once, and the last time it was set to is what counts."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator

import pytest

from magnetar.runtime.precise_timer import PreciseTimer, PreciseTimerUnavailable, now_ns


class Rung:
    """A timer, and the times at which it called back."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.timer = PreciseTimer(lambda: self.at_ns.append(now_ns()))

    async def once(self) -> int:
        async with asyncio.timeout(30):
            while not self.at_ns:
                await asyncio.sleep(0)
        return self.at_ns.pop()


@pytest.fixture
async def rung() -> AsyncIterator[Rung]:
    rung = Rung()
    yield rung
    rung.timer.close()


@pytest.mark.parametrize("delay_ns", [0, 1, 300_000, 1_500_000])
async def test_it_calls_back_and_never_early(rung: Rung, delay_ns: int) -> None:
    due_ns = now_ns() + delay_ns
    rung.timer.set(due_ns)
    assert await rung.once() >= due_ns


async def test_it_calls_back_once(rung: Rung) -> None:
    rung.timer.set(now_ns())
    await rung.once()
    await asyncio.sleep(0.01)
    assert rung.at_ns == []


@pytest.mark.parametrize("first_ns", [0, 60_000_000_000])
async def test_it_can_be_set_anew(rung: Rung, first_ns: int) -> None:
    rung.timer.set(now_ns() + first_ns)
    due_ns = now_ns() + 2_000_000
    rung.timer.set(due_ns)
    assert await rung.once() >= due_ns


async def test_set_anew_between_its_time_and_its_turn_it_is_not_early(rung: Rung) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    due_ns = now_ns() + 5_000_000
    rung.timer.set(due_ns)
    rung.timer._on_time()  # The loop had seen that it was time before it was set anew.
    assert rung.at_ns == []
    assert await rung.once() >= due_ns
    assert errors == []


async def test_closed_it_calls_nobody() -> None:
    rung = Rung()
    rung.timer.set(now_ns() + 1_000_000)
    rung.timer.close()
    await asyncio.sleep(0.01)
    assert rung.at_ns == []


async def test_without_a_descriptor_there_is_none(rung: Rung) -> None:
    descriptors = os.listdir("/proc/self/fd")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(PreciseTimerUnavailable):
            PreciseTimer(lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.listdir("/proc/self/fd") == descriptors


async def test_other_operating_systems_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(PreciseTimerUnavailable):
        PreciseTimer(lambda: None)
