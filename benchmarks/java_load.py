"""The neutral load: Kafka's own client, through ProducerPerformance and ConsumerPerformance, and in
transactions of one record.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.table import Row
from compat_tests import java
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker

_MEBIBYTE = 1 << 20
_SERVER_LIKE = 300.0
_TRANSACTIONS = Path(__file__).with_name("Transactions.java")


def measure(broker: Broker, records: int) -> dict[Row, float]:
    """Write and read `records` of 1 KB over four partitions, acks=all."""
    create_topic(broker.bootstrap, "java", 4)
    produced = _produce(broker, "java", records)
    create_topic(broker.bootstrap, "java-transactions", 4)
    in_transactions = _produce(
        broker, "java-transactions", records // 2, "--transaction-duration-ms", "100"
    )
    consumed = _consume(broker, "java", records)
    return {
        Row("Java ProducerPerformance, 1 KB, acks=all", "MB/s", True): produced,
        Row("the same in transactions of 100 ms", "MB/s", True): in_transactions,
        Row("Java ConsumerPerformance, 1 KB", "MB/s", True): consumed,
    }


def transactions(broker: Broker, rounds: int) -> dict[Row, float]:
    """One producer, one record to a transaction, version 2 of the protocol."""
    create_topic(broker.bootstrap, "one-record")
    *took, total = transact(broker, "one-record", 1, rounds)
    label = "transaction of 1 record, Java client, version 2"
    return {
        Row(f"{label}, p50", "ms", False): took[rounds // 2],
        Row(f"{label}, p99", "ms", False): took[rounds * 99 // 100],
        Row(f"{label}, rate", "per s", True): rounds / total * 1e3,
    }


def transact(broker: Broker, topic: str, partitions: int, rounds: int) -> list[float]:
    """Commit twice `rounds` transactions of a record to each partition. Return how long each of the
    second half took, in ascending order, and last all of these together, in ms."""
    arguments = (broker.bootstrap, topic, str(partitions), str(rounds))
    printed = java.run_program(_TRANSACTIONS, *arguments, timeout_s=_SERVER_LIKE, options=())
    return [int(line) / 1e6 for line in printed.split()]


def _produce(broker: Broker, topic: str, records: int, *more: str) -> float:
    printed = java.run(
        "ProducerPerformance",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic),
        *("--num-records", str(records), "--record-size", "1024", "--throughput", "-1"),
        *("--command-property", "acks=all", "batch.size=65536", "linger.ms=5"),
        *more,
        timeout_s=_SERVER_LIKE,
        options=(),
    )
    found = re.findall(r"records/sec \(([\d.]+) MB/sec\)", printed)
    return float(found[-1]) * _MEBIBYTE / 1e6


def _consume(broker: Broker, topic: str, records: int) -> float:
    printed = java.run(
        "ConsumerPerformance",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic),
        *("--num-records", str(records), "--hide-header"),
        timeout_s=_SERVER_LIKE,
        options=(),
    )
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
    columns = printed.strip().splitlines()[-1].split(", ")
    return float(columns[8]) * _MEBIBYTE / 1e6
