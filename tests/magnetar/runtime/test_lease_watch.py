"""A node serves clients while it has a lease, and again once it has one."""

from __future__ import annotations

import asyncio

import pytest

from logstore.disk.files import StorageFailure
from magnetar.runtime.lease_watch import LeaseWatch


class HandLease:
    """A lease that ends, and commits that return, when they are told to."""

    def __init__(self) -> None:
        self.is_leased = True
        self._ended = asyncio.Event()
        self._commits: list[asyncio.Future[None]] = []

    async def lease_ended(self) -> None:
        await self._ended.wait()

    async def proven(self) -> None:
        commit = asyncio.get_running_loop().create_future()
        self._commits.append(commit)
        await commit

    def end(self) -> None:
        self.is_leased = False
        self._ended.set()

    def renew(self, *, in_time: bool = True, failure: Exception | None = None) -> None:
        """Let the commit under way return, before or after the end of the lease that it brings."""
        if in_time:
            self.is_leased = True
            self._ended.clear()
        commit = self._commits.pop()
        commit.set_result(None) if failure is None else commit.set_exception(failure)


class Told:
    """What the server is told."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def turn_away(self) -> None:
        self.steps.append("away")

    def serve_again(self) -> None:
        self.steps.append("again")


class World:
    def __init__(self) -> None:
        self.lease, self.told, self.failures = HandLease(), Told(), list[BaseException]()
        self.watch = LeaseWatch(self.lease, self.told, self.failures.append)
        self.watch.start()

    async def steps(self) -> list[str]:
        """Return what the server was told so far."""
        for _ in range(5):
            await asyncio.sleep(0)
        return self.told.steps


@pytest.fixture
async def world() -> World:
    return World()


async def test_clients_are_turned_away_from_the_end_of_the_lease_to_the_next_one(
    world: World,
) -> None:
    assert await world.steps() == []
    world.lease.end()
    assert await world.steps() == ["away"]
    world.lease.renew()
    assert await world.steps() == ["away", "again"]
    world.lease.end()
    assert await world.steps() == ["away", "again", "away"]
    world.watch.stop()


async def test_a_commit_that_took_longer_than_the_lease_brings_nobody_back(world: World) -> None:
    world.lease.end()
    await world.steps()
    world.lease.renew(in_time=False)
    assert await world.steps() == ["away"]
    world.lease.renew()
    assert await world.steps() == ["away", "again"]
    world.watch.stop()


async def test_a_node_that_was_taken_over_meanwhile_serves_nobody_again(world: World) -> None:
    world.lease.end()
    await world.steps()
    world.lease.renew(failure=StorageFailure("taken over"))
    assert await world.steps() == ["away"]
    assert [str(each) for each in world.failures] == ["taken over"]
