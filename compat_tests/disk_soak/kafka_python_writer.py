"""An idempotent writer on kafka-python."""

from __future__ import annotations

import itertools
import time

from kafka import KafkaProducer

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
    producer = KafkaProducer(
        bootstrap_servers=job.bootstrap,
        enable_idempotence=True,
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        max_block_ms=DELIVERY_TIMEOUT_MS,
        linger_ms=20,
        batch_size=BATCH_BYTES,
        reconnect_backoff_max_ms=500,
    )
    acknowledged = Acknowledged(stream := job.new_stream())
    due = time.monotonic()
    for number in itertools.count():
        acknowledged.tell_now_and_then()
        due = max(due, time.monotonic() - 1) + 1 / job.records_per_s
        while number - acknowledged.count > UNACKNOWLEDGED_MAX or time.monotonic() < due:
            time.sleep(0.02)  # It is not due, or too much is unacknowledged.
            acknowledged.tell_now_and_then()
        sent = producer.send(job.topic, value_of(stream, number), partition=job.partition)
        sent.add_callback(lambda _, number=number: acknowledged.note(number))
