"""The deadlines of all groups: met together, and in turns."""

from __future__ import annotations

import asyncio

from magnetar.runtime.background import Tasks
from magnetar.runtime.group_timers import GroupTimers
from tests.magnetar.clocks import HeldClock


async def test_others_are_served_between_groups_whose_sessions_end_together() -> None:
    """After a restart all clients that have gone had their sessions end in one step."""
    clock, failures = HeldClock(), list[BaseException]()
    expired: list[str] = []
    timers = GroupTimers(
        clock, Tasks(failures.append), lambda group_id, _: expired.append(group_id)
    )
    for number in range(100):
        timers.watch(str(number), clock.steady_ms() + 1_000, clock.steady_ms())
    clock.passed_ms += 1_000
    expiring = asyncio.create_task(timers.expire_due())
    seen = set()
    while not expiring.done():
        await asyncio.sleep(0)
        seen.add(len(expired))
    timers.cancel()
    assert sorted(expired, key=int) == [str(number) for number in range(100)]
    assert len(seen) > 5 and not failures


async def test_each_turn_has_a_time_of_its_own() -> None:
    """Others may take seconds in between: the time to join began before, and was over too soon."""
    clock, failures = HeldClock(), list[BaseException]()
    late_ms: list[int] = []

    def expire(group_id: str, now_ms: int) -> None:
        late_ms.append(clock.steady_ms() - now_ms)
        timers.watch(group_id, now_ms + 5_000, now_ms)

    timers = GroupTimers(clock, Tasks(failures.append), expire)
    for number in range(100):
        timers.watch(str(number), clock.steady_ms(), clock.steady_ms())
    expiring = asyncio.create_task(timers.expire_due())
    while not expiring.done():
        await asyncio.sleep(0)
        clock.passed_ms += 1_000
    timers.cancel()
    assert late_ms == [0] * 100 and not failures


async def test_a_group_that_is_due_again_at_once_is_looked_at_once_a_turn() -> None:
    """Of a large group some members are removed at each look."""
    clock, failures = HeldClock(), list[BaseException]()
    looks: list[str] = []

    def expire(group_id: str, now_ms: int) -> None:
        looks.append(group_id)
        if len(looks) < 300:
            timers.watch(group_id, now_ms, now_ms)

    timers = GroupTimers(clock, Tasks(failures.append), expire)
    timers.watch("large", clock.steady_ms() + 1_000, clock.steady_ms())
    clock.passed_ms += 1_000
    timers.cancel()  # The alarm has rung.
    expiring = asyncio.create_task(timers.expire_due())
    while not expiring.done():
        before = len(looks)
        await asyncio.sleep(0)
        assert len(looks) <= before + 1
    timers.cancel()
    assert len(looks) == 300 and not failures
