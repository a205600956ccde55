"""`make bench`: magnetar (every acknowledgement on disk) beside Apache Kafka (page cache), in one
run.

Rounds alternate between the two brokers, so that a busy moment of the machine hits both; the table
shows medians. `--quick` is one round of small loads, about two minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import (
    cleaner_load,
    cluster_load,
    connection_load,
    group_load,
    idle_load,
    java_load,
    joint_load,
    measures,
    partition_load,
    retention_load,
    security_load,
    spark_load,
    spark_sink_load,
    transaction_histories,
    workers_load,
)
from benchmarks.subjects import Settings, running
from benchmarks.table import Results, Row
from compat_tests.brokers import Broker


class Size(NamedTuple):
    """How much work a run does."""

    rounds: int
    megabytes: int
    java_records: int
    latency_rounds: int
    transaction_rounds: int
    history: int
    group_seconds: int
    load_seconds: int
    spread_records: int
    committed_offsets: int
    topics: int
    segments: int
    spark_records: int


QUICK = Size(
    rounds=1,
    megabytes=200,
    java_records=300_000,
    latency_rounds=500,
    transaction_rounds=60,
    history=1_000,
    group_seconds=3,
    load_seconds=3,
    spread_records=300_000,
    committed_offsets=20_000,
    topics=100,
    segments=1_000,
    spark_records=300_000,
)
FULL = Size(
    rounds=3,
    megabytes=600,
    java_records=1_000_000,
    latency_rounds=2000,
    transaction_rounds=200,
    history=10_000,
    group_seconds=10,
    load_seconds=10,
    spread_records=2_000_000,
    committed_offsets=100_000,
    topics=1_000,
    segments=10_000,
    spark_records=2_000_000,
)
_IDLE_CONNECTIONS = 500
#: A part's brokers run with these; the others as they come.
_SETTINGS: dict[str, Settings] = {
    "groups": group_load.SETTINGS,
    "cleaner": cleaner_load.SETTINGS,
    "retention": retention_load.SETTINGS,
    "security": security_load.with_acls,
}
#: Parts that compare magnetar with itself.
_OF_MAGNETAR = frozenset({"workers"})
#: Parts that start brokers of their own, by the name of the kind.
_OF_THEIR_OWN: dict[str, Callable[[str, Size], dict[Row, float]]] = {
    "cluster": lambda kind, size: cluster_load.measure(
        kind, rounds=size.latency_rounds // 4, seconds=size.load_seconds
    ),
}
#: What a part's brokers listen for beside PLAINTEXT.
_PROTOCOLS = {"security": security_load.PROTOCOLS}
Measure = Callable[[Broker], dict[Row, float]]


def parts(size: Size) -> dict[str, Measure]:
    return {
        "throughput": lambda broker: measures.throughput(broker, size.megabytes),
        "java": lambda broker: java_load.measure(broker, size.java_records),
        "latency": lambda broker: measures.latency(broker, size.latency_rounds),
        "clients": lambda broker: connection_load.clients(broker, seconds=size.load_seconds),
        "connections": lambda broker: connection_load.latency(broker, seconds=size.load_seconds),
        "idle-consumers": lambda broker: idle_load.measure(broker, seconds=size.load_seconds),
        "partitions-1000": lambda broker: measures.many_partitions(broker, size.spread_records),
        "transactions": lambda broker: measures.transactions(broker, size.transaction_rounds),
        "version-2": lambda broker: java_load.transactions(broker, 10 * size.transaction_rounds),
        "pipeline": lambda broker: measures.consume_process_produce(
            broker, size.transaction_rounds
        ),
        "aborted": lambda broker: transaction_histories.aborted(broker, 10 * size.history),
        "recovery": lambda broker: transaction_histories.recovery(broker, size.history),
        "end": lambda broker: transaction_histories.end_txn(
            broker, size.history, min(size.history // 10, 1000)
        ),
        "joint": lambda broker: joint_load.measure(
            broker, votes=max(size.history // 10, 100), samples=5
        ),
        "groups": lambda broker: group_load.measure(
            broker, seconds=size.group_seconds, committed=size.committed_offsets
        ),
        "cleaner": lambda broker: cleaner_load.measure(
            broker, megabytes=size.megabytes, rounds=size.latency_rounds
        ),
        "partitions": lambda broker: partition_load.measure(broker, topics=size.topics),
        "retention": lambda broker: retention_load.measure(broker, segments=size.segments),
        "spark": lambda broker: spark_load.measure(broker, records=size.spark_records),
        "spark-sink": lambda broker: spark_sink_load.measure(
            broker, records=size.spark_records // 4
        ),
        "security": lambda broker: security_load.measure(
            broker, megabytes=size.megabytes, logins=size.history, rounds=size.latency_rounds
        ),
        "workers": lambda broker: workers_load.measure(
            broker,
            records=size.java_records // 2,
            transactions=5 * size.transaction_rounds,
            seconds=size.load_seconds,
        ),
        "rest": lambda broker: measures.start_and_rest(broker, _IDLE_CONNECTIONS),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench")
    parser.add_argument("--quick", action="store_true", help="one round of small loads")
    parser.add_argument(
        "--only", nargs="+", choices=[*parts(QUICK), *_OF_THEIR_OWN], help="some parts of it"
    )
    parser.add_argument("--broker", choices=("kafka", "magnetar"), help="one broker alone")
    parser.add_argument("--rounds", type=int, help="how often each is measured")
    parser.add_argument(
        "--spark-records", type=int, help="how many Spark reads; it writes a quarter"
    )
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else FULL
    if arguments.spark_records is not None:
        size = size._replace(spark_records=arguments.spark_records)
    kinds = (arguments.broker,) if arguments.broker else ("kafka", "magnetar")
    chosen = {
        name: measure
        for name, measure in parts(size).items()
        if arguments.only is None or name in arguments.only
    }
    results = Results()
    load_before = _load()
    began_at = time.monotonic()

    def announce(number: int, name: str, kind: str) -> None:
        elapsed_s = time.monotonic() - began_at
        print(f"{elapsed_s:5.0f} s  {number + 1} {name} {kind}", flush=True)

    for number in range(arguments.rounds or size.rounds):
        for name, measure in chosen.items():
            for kind in kinds:
                if kind != "magnetar" and name in _OF_MAGNETAR:
                    continue
                announce(number, name, kind)
                with running(kind, _SETTINGS.get(name), _PROTOCOLS.get(name, ())) as broker:
                    results.add(kind, measure(broker))
        for name, measure_kind in _OF_THEIR_OWN.items():
            if arguments.only is None or name in arguments.only:
                for kind in kinds:
                    announce(number, name, kind)
                    results.add(kind, measure_kind(kind, size))
        # After each round: all of them take longer than some will wait.
        print(f"\n{results.table()}\n", flush=True)
    print(f"{os.cpu_count()} cores shared by clients and broker; load before: {load_before}")
    return 0


def _load() -> str:
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
