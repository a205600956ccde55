"""A reader of uncommitted data on confluent-kafka, which keeps its place itself."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

from compat_tests.disk_soak.plan import WRITERS, BulkJob
from compat_tests.disk_soak.telling import Reading


def run(job: BulkJob) -> None:
    """Read all partitions from their start, until killed."""
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": f"{job.worker}-{job.run}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(job.topic, each, 0) for each in range(len(WRITERS))])
    reading = Reading()
    while True:
        for message in consumer.consume(500, 0.2):
            value = message.value()
            if message.error() is None and isinstance(value, bytes):
                reading.found(f"{message.partition()} at {message.offset()}", value)
        reading.tell_now_and_then()
