"""A reader of committed data on aiokafka, which keeps its place itself."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from compat_tests.disk_soak.plan import WRITERS, BulkJob
from compat_tests.disk_soak.telling import Reading


def run(job: BulkJob) -> None:
    """Read all partitions from their start, until killed."""
    asyncio.run(_read(job))


async def _read(job: BulkJob) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=job.bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    places = [TopicPartition(job.topic, each) for each in range(len(WRITERS))]
    consumer.assign(places)
    await consumer.seek_to_beginning(*places)
    reading = Reading()
    while True:
        for place, records in (await consumer.getmany(timeout_ms=200)).items():
            for each in records:
                reading.found(f"{place.partition} at {each.offset}", each.value)
        reading.tell_now_and_then()
