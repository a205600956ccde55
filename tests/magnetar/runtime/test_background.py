"""Work beside requests: its errors end the broker, and its cancellation is no failure."""

from __future__ import annotations

import asyncio

from magnetar.runtime.background import Background


async def _raise(failure: BaseException) -> None:
    raise failure


async def test_a_failure_is_told() -> None:
    told: list[BaseException] = []
    background = Background(told.append)
    failure = OSError("the disk is gone")
    background.start(_raise(failure))
    await background.ended()
    await asyncio.sleep(0)
    assert told == [failure]


async def test_a_cancelled_one_and_one_that_was_never_started_tell_nothing() -> None:
    told: list[BaseException] = []
    background = Background(told.append)
    background.cancel()
    await background.ended()
    background.start(asyncio.sleep(60))
    background.cancel()
    await background.ended()
    await asyncio.sleep(0)
    assert told == []
