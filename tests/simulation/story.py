"""Stories of one transactional id in a whole simulated broker, step by step.

What is written here asks no coordinator first: so that data can outlive the record of its add.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from logstore.disk.durability import Durability
from tests.logstore.partitions import batch_of
from tests.magnetar import ending
from tests.simulation.history import committed_by_markers, read_committed
from tests.simulation.simulated_broker import World
from tests.simulation.simulated_loop import SimulatedLoop

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TIMEOUT_MS = 10_000
Story = Callable[[World], Awaitable[None]]


def tell(story: Story, durability: Durability = Durability.FSYNC) -> None:
    """Run the story to its end, and every minute that it sleeps in no time."""
    loop = SimulatedLoop()

    async def whole() -> None:
        world = World(loop, Random(7), durability)
        await world.start()
        await story(world)
        assert not world.failures
        await world.close()

    try:
        loop.run_until_complete(whole())
    finally:
        loop.close()


async def write(
    world: World,
    identity: ProducerIdentity,
    partition: TopicPartition,
    value: str,
    sequence: int = 0,
) -> int:
    """Write a batch of one record to the partition, durably; return its offset."""
    batch = batch_of(
        value.encode(),
        timestamp=world.broker.clock.now_ms(),
        producer_id=identity.producer_id,
        epoch=identity.producer_epoch,
        sequence=sequence,
        transactional=True,
    )
    log = world.broker.topics.partition(*partition)
    appended = log.append(log.check(batch, world.broker.clock.now_ms()))
    await log.durable(appended.end_offset)
    return appended.base_offset


async def init(
    world: World, transactional_id: str = "tx", timeout_ms: int = TIMEOUT_MS
) -> ProducerIdentity:
    return await world.broker.transactions.init_producer_id(transactional_id, timeout_ms, None)


async def begin(
    world: World, *partitions: TopicPartition, timeout_ms: int = TIMEOUT_MS
) -> ProducerIdentity:
    """Begin a transaction that holds these partitions, with a record in each."""
    identity = await init(world, timeout_ms=timeout_ms)
    await world.broker.transactions.holds.add_partitions("tx", identity, frozenset(partitions))
    for partition in partitions:
        await write(world, identity, partition, "held")
    return identity


async def end(
    world: World, identity: ProducerIdentity, *, commit: bool, version: int = 1
) -> ProducerIdentity:
    """End it; return who may begin the next."""
    return await ending.end(
        world.broker.transactions, "tx", identity, commit=commit, transaction_version=version
    )


def values(world: World, partition: TopicPartition) -> list[str]:
    """Return what read_committed readers find; nothing may be open."""
    log = world.broker.topics.partition(*partition)
    assert log.last_stable_offset == log.high_watermark
    assert read_committed(log) == committed_by_markers(log)
    return read_committed(log)
