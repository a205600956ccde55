"""An idempotent writer on aiokafka."""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer

from compat_tests.disk_soak.plan import (
    BATCH_BYTES,
    DELIVERY_TIMEOUT_MS,
    UNACKNOWLEDGED_MAX,
    BulkJob,
)
from compat_tests.disk_soak.record import value_of
from compat_tests.disk_soak.telling import Acknowledged


def run(job: BulkJob) -> None:
    """Write at the job's rate, until killed."""
    asyncio.run(_write(job))


async def _write(job: BulkJob) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=job.bootstrap,
        enable_idempotence=True,
        # It gives up a batch after so long.
        request_timeout_ms=DELIVERY_TIMEOUT_MS,
        linger_ms=20,
        max_batch_size=BATCH_BYTES,
    )
    await producer.start()
    acknowledged = Acknowledged(stream := job.new_stream())
    due = time.monotonic()
    for number in itertools.count():
        acknowledged.tell_now_and_then()
        due = max(due, time.monotonic() - 1) + 1 / job.records_per_s
        while number - acknowledged.count > UNACKNOWLEDGED_MAX or time.monotonic() < due:
            await asyncio.sleep(0.02)
            acknowledged.tell_now_and_then()
        sent = await producer.send(job.topic, value_of(stream, number), partition=job.partition)
        sent.add_done_callback(partial(_delivered, acknowledged, number))


def _delivered(acknowledged: Acknowledged, number: int, sent: asyncio.Future[Any]) -> None:
    if not sent.cancelled() and sent.exception() is None:
        acknowledged.note(number)
