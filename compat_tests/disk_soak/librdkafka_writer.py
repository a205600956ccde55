"""An idempotent writer on confluent-kafka."""

from __future__ import annotations

import itertools
import time
from functools import partial

from confluent_kafka import KafkaError, Message, Producer

from compat_tests.disk_soak.plan import DELIVERY_TIMEOUT_MS, UNACKNOWLEDGED_MAX, BulkJob
from compat_tests.disk_soak.record import value_of
from compat_tests.disk_soak.telling import Acknowledged


def run(job: BulkJob) -> None:
    """Write at the job's rate, until killed."""
    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "enable.idempotence": True,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            "queue.buffering.max.messages": UNACKNOWLEDGED_MAX,
            "linger.ms": 20,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    acknowledged = Acknowledged(stream := job.new_stream())
    due = time.monotonic()
    for number in itertools.count():
        acknowledged.tell_now_and_then()
        due = max(due, time.monotonic() - 1) + 1 / job.records_per_s
        while len(producer) >= UNACKNOWLEDGED_MAX or time.monotonic() < due:
            producer.poll(0.02)
            acknowledged.tell_now_and_then()
        producer.produce(
            job.topic,
            value_of(stream, number),
            partition=job.partition,
            on_delivery=partial(_delivered, acknowledged, number),
        )


def _delivered(
    acknowledged: Acknowledged, number: int, error: KafkaError | None, _: Message
) -> None:
    if error is None:
        acknowledged.note(number)
