"""Retention of a log of many segments: what clients feel of it, and how long it takes.

Each batch is 5 ms later than the one before, and `segment.ms` is 1: each gets a segment of its own.
Then `retention.ms` becomes 1, and the next check deletes all of them but the last. Pings are those
of `partition_load`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.frames import Frames
from benchmarks.partition_load import PRODUCE, Ping, check
from benchmarks.table import Row
from compat_tests.admin import configure, create_topic
from compat_tests.brokers import Broker
from compat_tests.raw import Connection
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import SimpleRecord, build_batch

SETTINGS = {"log.retention.check.interval.ms": "1000", "log.initial.task.delay.ms": "0"}
_TOPIC = "rolling"
_EARLIEST = -2
#: Batches in one write, each answered.
_AT_ONCE = 20
_FILES_GO_AFTER_MS = 1_000
_PATIENCE_S = 600.0


def measure(broker: Broker, *, segments: int) -> dict[Row, float]:
    """Fill a log with segments of a batch each, and have retention delete them."""
    configs = {
        "segment.ms": "1",
        "retention.ms": "-1",
        "file.delete.delay.ms": str(_FILES_GO_AFTER_MS),
    }
    create_topic(broker.bootstrap, _TOPIC, 1, configs)
    began_ms = int(time.time() * 1000) - 10 * segments
    with Frames(broker.bootstrap) as connection:
        for first in range(0, segments, _AT_ONCE):
            times = [began_ms + 5 * number for number in range(first, first + _AT_ONCE)]
            connection.send(PRODUCE, *map(_request, times))
            for _ in times:
                answer = connection.receive(ProduceResponse, PRODUCE)
                check([answer.responses[0].partition_responses[0].error_code])
    directory = broker.partition_directory(_TOPIC, 0)
    there = len(list(directory.glob("*.log")))
    ping = Ping(broker)
    began_at = time.perf_counter()
    configure(broker, _TOPIC, retention_ms="1")
    with Connection(broker.bootstrap) as connection:
        _wait(lambda: connection.list_offset(_TOPIC, _EARLIEST)[2] >= segments - 1)
    took_s = time.perf_counter() - began_at
    _wait(lambda: len(list(directory.iterdir())) < 50)
    label = f"retention of {there:,} segments"
    return {
        Row(f"{label}: the log starts later after", "s", False): took_s,
        Row(f"{label}: longest ping until the files are gone", "ms", False): ping.end(),
    }


def _request(timestamp_ms: int) -> ProduceRequest:
    records = bytes(build_batch([SimpleRecord(b"k", b"x" * 100, timestamp_ms)]))
    data = [PartitionProduceData(index=0, records=records)]
    topic_data = [TopicProduceData(name=_TOPIC, partition_data=data)]
    return ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topic_data)


def _wait(is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_over():
        assert time.monotonic() < deadline, "nothing is deleted"
        time.sleep(0.1)
