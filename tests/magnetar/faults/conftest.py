"""A broker with faults in this process, and calls through its door."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from magnetar.config.load import Given, load
from magnetar.faults.composing import FaultyBroker
from magnetar.testing.link import Link

Call = Callable[..., Awaitable[Any]]


@pytest.fixture
def link() -> Link:
    """The tests' end of the door."""
    return Link()


@pytest.fixture
def settings() -> dict[str, str]:
    """What `faulty` has besides; a test may say other settings."""
    return {}


@pytest.fixture
async def faulty(link: Link, settings: dict[str, str]) -> AsyncIterator[FaultyBroker]:
    """A broker that keeps nothing, and has no faults yet."""
    values = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "durability": "memory",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        **settings,
    }
    loaded = load([Given(name, value, "test") for name, value in values.items()])
    # A descriptor of its own, as a process has.
    made = FaultyBroker(loaded.config, os.dup(link.descriptor))
    link.handed_over()
    await made.broker.start()
    yield made
    await made.broker.stop()
    made.close()
    link.close()


@pytest.fixture
def call(faulty: FaultyBroker, link: Link) -> Call:
    """What the tests' process calls, from a thread: the broker's loop is this one."""

    async def made(name: str, **args: Any) -> Any:
        return await asyncio.to_thread(link.call, name, **args)

    return made
