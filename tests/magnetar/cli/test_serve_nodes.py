"""The start of one of several nodes, and the signal that ends it."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.cli.serve_nodes import started
from magnetar.config.load import ConfigError


async def test_a_stop_gives_up_a_start_that_waits_for_the_database() -> None:
    stop = asyncio.Event()

    async def start() -> None:
        stop.set()
        await asyncio.Event().wait()

    assert not await asyncio.wait_for(started(start(), stop, lambda: 0.0), 30)


@pytest.mark.parametrize("is_told", [False, True])
async def test_a_start_that_ends_is_waited_for(is_told: bool) -> None:
    stop = asyncio.Event()

    async def start() -> None:
        if is_told:
            stop.set()
        for _ in range(3):
            await asyncio.sleep(0)

    assert await asyncio.wait_for(started(start(), stop, lambda: None), 30)


async def test_a_start_that_fails_says_so() -> None:
    async def start() -> None:
        raise ConfigError("no such setting")

    with pytest.raises(ConfigError, match="no such setting"):
        await started(start(), asyncio.Event(), lambda: None)
