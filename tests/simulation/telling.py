"""A history from its seed to its end: workers at work, the broker crashing, then the checker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from random import Random

from coordinator.transactions.metadata import PRODUCER_EPOCH_MAX
from logstore.disk.durability import Durability
from tests.simulation.history import History, check
from tests.simulation.simulated_broker import HEALING_INTERVAL_MS, World
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.workers import TIMEOUT_MS, Worker

#: Each history is one seed; a soak begins elsewhere.
_FIRST = int(os.environ.get("MAGNETAR_SEED", "0"))
SEEDS = range(_FIRST, _FIRST + 10_000_000)


WorkersOf = Callable[[World, History, Random], Sequence[Worker]]
Names = Sequence[str]


class Broken(AssertionError):
    """What the checker found."""


async def near_the_last_epoch(world: World, random: Random, names: Names) -> None:
    """Make the transactional ids known, with so many epochs used that few are left."""
    transactions = world.broker.transactions
    now_ms = world.broker.clock.now_ms()
    for name in names:
        await transactions.init_producer_id(name, TIMEOUT_MS, None)
        known = transactions.find(name)
        assert known is not None
        shard = transactions.store.shard_of(name)
        aged = known._replace(producer_epoch=PRODUCER_EPOCH_MAX - random.randrange(6))
        await shard.durable(shard.append([aged], now_ms))


async def tell(world: World, random: Random, workers_of: WorkersOf, names: Names) -> History:
    """One history: work, crashes, and at the end all the time that healing may take."""
    history = History()
    await world.start()
    if random.random() < 0.3:
        await near_the_last_epoch(world, random, names)
    workers = workers_of(world, history, random)
    tasks = [world.mine(asyncio.create_task(worker.run())) for worker in workers]
    for _ in range(random.randint(1, 4)):
        if world.durability is Durability.FSYNC and random.random() < 0.8:
            world.disk.lose_power_after(random.randrange(300))
        try:
            async with asyncio.timeout(random.uniform(0, 3)):
                await world.is_dark.wait()
        except TimeoutError:
            pass
        await world.crash()
    await asyncio.sleep(random.uniform(0, 1))
    for worker in workers:
        worker.is_ending = True
    if random.random() < 0.5:
        for task in tasks:
            task.cancel()  # mid-transaction, all of them
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
    # The last timeout, the last delayed request and its own; then a sweep.
    await asyncio.sleep((2 * TIMEOUT_MS + 2 * HEALING_INTERVAL_MS) / 1000 + 4)
    return history


def run(
    seed: int,
    workers_of: WorkersOf,
    names: Names,
    durability: Durability = Durability.FSYNC,
) -> tuple[World, History]:
    """Tell the history of a seed and fail with its witnesses. `names`: the transactional ids."""
    random = Random(seed)
    loop = SimulatedLoop()

    async def story() -> tuple[World, History]:
        can_sync_all = random.random() < 0.8
        world = World(loop, random, durability, can_sync_all)
        history = await tell(world, random, workers_of, names)
        witnesses = [*check(history, world.broker), *map(repr, world.failures)]
        await world.close()
        if witnesses:
            raise Broken(f"seed {seed}:\n  " + "\n  ".join(witnesses))
        return world, history

    try:
        return loop.run_until_complete(story())
    finally:
        loop.close()
