"""Members on kafka-python, a thread each."""

from __future__ import annotations

import random
import time
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from compat_tests.churn.plan import ChurnJob
from compat_tests.churn.telling import tell_read
from compat_tests.churn.threads import run_in_threads
from compat_tests.pipeline.telling import tell


def run(job: ChurnJob) -> None:
    run_in_threads(job, _member)


def _member(job: ChurnJob, number: int) -> None:
    while True:
        try:
            consumer = _consumer(job, number)
            try:
                consumer.subscribe(job.topics)
                _live(job, consumer)
            finally:
                consumer.close()
        except KafkaError as error:
            tell("refused", why=repr(error))
        tell("left")
        time.sleep(random.uniform(*job.away_s))


def _live(job: ChurnJob, consumer: KafkaConsumer) -> None:
    """Read and commit until it is time to leave."""
    leaves_at = time.time() + random.uniform(*job.stays_s)
    while time.time() < leaves_at or time.time() >= job.leaves_until_s:
        polled: dict[Any, list[Any]] = consumer.poll(timeout_ms=300)
        ends = tell_read(
            (each.topic, each.partition, each.offset)
            for records in polled.values()
            for each in records
        )
        if not ends:
            tell("idle")
            continue
        offsets = {
            TopicPartition(*place): OffsetAndMetadata(end, "", -1) for place, end in ends.items()
        }
        try:
            consumer.commit(offsets)
        except KafkaError as error:
            tell("refused", why=repr(error))


def _consumer(job: ChurnJob, number: int) -> KafkaConsumer:
    return KafkaConsumer(
        **job.settings(number),
        partition_assignment_strategy=[RangePartitionAssignor],
        reconnect_backoff_max_ms=500,
    )
