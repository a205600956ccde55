"""Compaction: how fast a dirty log is cleaned, and what clients feel of it meanwhile.

A topic is filled under `delete`, then changed to `compact`: the cleaner begins within a second.
It has done when the broker's `cleaner-offset-checkpoint` says so, which both brokers keep. While it
works, single records are produced and fetched on another topic, as before it began.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from random import Random
from statistics import quantiles

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from benchmarks.subjects import cpu_seconds
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.confluent_client import producer
from compat_tests.raw import Connection, batch

SETTINGS = {"log.cleaner.backoff.ms": "500", "log.initial.task.delay.ms": "0"}
_TOPIC, _OTHER = "compacted", "beside"
_RECORD_BYTES = 1024
#: So many records to a key.
_DUPLICATES = 3
_CONFIGS = {
    "cleanup.policy": "delete",
    "segment.bytes": str(64 << 20),
    "min.cleanable.dirty.ratio": "0.01",
}
_PATIENCE_S = 300.0


def measure(broker: Broker, *, megabytes: int, rounds: int) -> dict[Row, float]:
    """Return the rate of input, and the 99th percentiles with and without the cleaner."""
    create_topic(broker.bootstrap, _TOPIC, 1, _CONFIGS)
    create_topic(broker.bootstrap, _OTHER, 1)
    count = _fill(broker, megabytes)
    directory = broker.partition_directory(_TOPIC, 0)
    sizes = [path.stat().st_size for path in sorted(directory.glob("*.log"))]
    with Connection(broker.bootstrap) as connection:
        beside = _Beside(connection)
        beside.perform(rounds)  # What runs often is compiled, in a JVM.
        quiet = beside.perform(rounds)
        cpu_before = cpu_seconds(broker.pid)
        _compact(broker)
        busy, took_s = beside.perform_until(lambda: _is_clean(broker, count // 2))
    cpu_s = cpu_seconds(broker.pid) - cpu_before
    cleaned_mb = sum(sizes[:-1]) / 1e6
    found = {
        Row("compaction of 1 KB records, input", "MB/s", True): cleaned_mb / took_s,
        Row("the same, for each CPU-second of the broker", "MB/s", True): cleaned_mb / cpu_s,
    }
    for name, before, during in zip(("produce", "fetch"), quiet, busy, strict=True):
        for point, label in ((49, "p50"), (98, "p99")):
            for values, when in ((before, "without"), (during, "with")):
                row = Row(f"{name} of one record {when} compaction, {label}", "ms", False)
                found[row] = 1000 * quantiles(values, n=100)[point]
    return found


def _fill(broker: Broker, megabytes: int) -> int:
    """Write records of random keys; return how many."""
    random = Random(1)
    count = megabytes * 1_000_000 // _RECORD_BYTES
    keys = count // _DUPLICATES
    value = os.urandom(_RECORD_BYTES)
    client = producer(broker.bootstrap, linger_ms=5, batch_size=200_000)
    for number in range(count):
        key = b"key-%012d" % random.randrange(keys)
        while True:
            try:
                client.produce(_TOPIC, value, key, partition=0)
                break
            except BufferError:
                client.poll(0.1)
        if number % 1000 == 0:
            client.poll(0)
    client.flush()
    return count


def _compact(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, _TOPIC, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(timeout=30)


def _is_clean(broker: Broker, offset: int) -> bool:
    path = broker.log_directory / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines() if path.exists() else []
    return any(
        line.startswith(f"{_TOPIC} 0 ") and int(line.rpartition(" ")[2]) >= offset for line in lines
    )


class _Beside:
    """One record produced, then fetched, over and over; seconds of each."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._record = batch([b"x" * 100])

    def perform(self, rounds: int) -> tuple[list[float], list[float]]:
        times: tuple[list[float], list[float]] = [], []
        for _ in range(rounds):
            self._once(times)
        return times

    def perform_until(
        self, is_over: Callable[[], bool]
    ) -> tuple[tuple[list[float], list[float]], float]:
        """Return the times, and how long it took in all."""
        began_at = time.perf_counter()
        times: tuple[list[float], list[float]] = [], []
        while not is_over():
            for _ in range(20):
                self._once(times)
            assert time.perf_counter() - began_at < _PATIENCE_S, "the log is not cleaned"
        return times, time.perf_counter() - began_at

    def _once(self, times: tuple[list[float], list[float]]) -> None:
        began_at = time.perf_counter()
        appended = self._connection.produce(_OTHER, self._record)
        produced_at = time.perf_counter()
        self._connection.fetch(_OTHER, appended.base_offset)
        times[0].append(produced_at - began_at)
        times[1].append(time.perf_counter() - produced_at)
