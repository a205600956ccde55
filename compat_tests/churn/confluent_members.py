"""Members on confluent-kafka (librdkafka), a thread each: eager, cooperative, static, KIP-848."""

from __future__ import annotations

import random
import time

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from compat_tests.churn.plan import ChurnJob
from compat_tests.churn.telling import tell_read
from compat_tests.churn.threads import run_in_threads
from compat_tests.pipeline.telling import tell

_CONSUMED_AT_ONCE = 200


def run(job: ChurnJob) -> None:
    run_in_threads(job, _member)


def _member(job: ChurnJob, number: int) -> None:
    while True:
        consumer = Consumer(_settings(job, number))
        try:
            consumer.subscribe(job.topics)
            _live(job, consumer)
        finally:
            consumer.close()
        tell("left")
        time.sleep(random.uniform(*job.away_s))


def _live(job: ChurnJob, consumer: Consumer) -> None:
    """Read and commit until it is time to leave, or the client cannot go on."""
    leaves_at = time.time() + random.uniform(*job.stays_s)
    while time.time() < leaves_at or time.time() >= job.leaves_until_s:
        read: list[tuple[str, int, int]] = []
        for message in consumer.consume(_CONSUMED_AT_ONCE, 0.3):
            error = message.error()
            if error is None:
                read.append(_place(message))
            elif error.fatal():
                tell("refused", why=str(error))
                return
        _commit(consumer, read)


def _commit(consumer: Consumer, read: list[tuple[str, int, int]]) -> None:
    ends = tell_read(read)
    if not ends:
        tell("idle")
        return
    offsets = [TopicPartition(*place, end) for place, end in ends.items()]
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as error:
        tell("refused", why=str(error))


def _place(message: Message) -> tuple[str, int, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


def _settings(job: ChurnJob, number: int) -> dict[str, object]:
    settings: dict[str, object] = {
        "bootstrap.servers": job.bootstrap,
        "group.id": job.group,
        "client.id": job.client_id(number),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "max.poll.interval.ms": job.max_poll_interval_ms,
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }
    if job.manner == "consumer":
        return {**settings, "group.protocol": "consumer"}
    if (instance := job.instance(number)) is not None:
        settings["group.instance.id"] = instance
    cooperative = job.manner == "cooperative"
    return {
        **settings,
        "session.timeout.ms": job.session_timeout_ms,
        "heartbeat.interval.ms": job.session_timeout_ms // 6,
        "partition.assignment.strategy": "cooperative-sticky" if cooperative else "range",
    }
