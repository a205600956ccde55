"""Members on aiokafka, all on one event loop."""

from __future__ import annotations

import asyncio
import random
import time

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from compat_tests.churn.plan import ChurnJob
from compat_tests.churn.telling import tell_read
from compat_tests.pipeline.telling import tell

_STOP_TIMEOUT_S = 5.0


def run(job: ChurnJob) -> None:
    asyncio.run(_members(job))


async def _members(job: ChurnJob) -> None:
    tell("ready")
    await asyncio.gather(*(_member(job, number) for number in range(job.members)))


async def _member(job: ChurnJob, number: int) -> None:
    while True:
        consumer = _consumer(job, number)
        try:
            await consumer.start()
            await _live(job, consumer)
        except KafkaError as error:
            tell("refused", why=repr(error))
        try:
            await asyncio.wait_for(consumer.stop(), _STOP_TIMEOUT_S)
        except (KafkaError, TimeoutError) as error:
            tell("refused", why=repr(error))
        tell("left")
        await asyncio.sleep(random.uniform(*job.away_s))


async def _live(job: ChurnJob, consumer: AIOKafkaConsumer) -> None:
    """Read and commit until it is time to leave."""
    leaves_at = time.time() + random.uniform(*job.stays_s)
    while time.time() < leaves_at or time.time() >= job.leaves_until_s:
        batches = await consumer.getmany(timeout_ms=300)
        ends = tell_read(
            (each.topic, each.partition, each.offset)
            for records in batches.values()
            for each in records
        )
        if not ends:
            tell("idle")
            continue
        try:
            await consumer.commit({TopicPartition(*place): end for place, end in ends.items()})
        except KafkaError as error:
            tell("refused", why=repr(error))


def _consumer(job: ChurnJob, number: int) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *job.topics,
        **job.settings(number),
        rebalance_timeout_ms=job.max_poll_interval_ms,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
