"""What nodes cost: the CPU of one and of two nodes for the same work, and their memory.

    python -m benchmarks.workers_load [--workers 1 2] [--records N] [--transactions N]

CPU for an operation is the figure to compare: clients share the machine's cores. It is that of all
nodes together; each figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.subjects import cpu_seconds
from compat_tests import brokers
from compat_tests.admin import create_topic
from compat_tests.brokers import MagnetarBroker

PARTITIONS = 4
_TOPIC = "load"
_VALUE = b"x" * 100
_TIMEOUT_S = 60.0
_REST_S = 2.0


@contextmanager
def _cluster(workers: int) -> Iterator[MagnetarBroker]:
    with TemporaryDirectory(prefix="bench-workers-") as directory:
        broker = MagnetarBroker(Path(directory), workers=workers)
        broker.settings = {}
        with brokers.running(broker):
            create_topic(broker.bootstrap, _TOPIC, PARTITIONS)
            yield broker


def _pids(broker: MagnetarBroker) -> list[int]:
    return broker.node_pids() if broker.workers > 1 else [broker.pid]


def _cpu_s(broker: MagnetarBroker) -> float:
    return sum(cpu_seconds(pid) for pid in _pids(broker))


def _microseconds_each(broker: MagnetarBroker, count: int, work: Callable[[int], None]) -> float:
    before = _cpu_s(broker)
    work(count)
    return (_cpu_s(broker) - before) / count * 1e6


def _pss_mb(broker: MagnetarBroker) -> float:
    """Return the proportional memory of a node, the mean of all."""
    time.sleep(_REST_S)  # What a start leaves to do is not a node at rest.
    kilobytes = [
        int(line.split()[1])
        for pid in _pids(broker)
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Pss:")
    ]
    return sum(kilobytes) / len(kilobytes) / 1024


def _produce(broker: MagnetarBroker, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in range(count):
        while True:
            try:
                producer.produce(_TOPIC, _VALUE, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(_TIMEOUT_S) == 0


def _commit_offsets(broker: MagnetarBroker, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "load"})
    for number in range(count):
        offsets = [TopicPartition(_TOPIC, number % PARTITIONS, number)]
        consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def _transact(broker: MagnetarBroker, count: int, commits_ms: list[float]) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "load", "linger.ms": 0}
    )
    producer.init_transactions(_TIMEOUT_S)
    for _ in range(count):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(_TOPIC, _VALUE, partition=partition)
        producer.flush(_TIMEOUT_S)
        began_at = time.perf_counter()
        producer.commit_transaction(_TIMEOUT_S)
        commits_ms.append((time.perf_counter() - began_at) * 1000)


def measure(workers: int, records: int, transactions: int) -> dict[str, float]:
    """Return the figures of so many nodes by their names."""
    with _cluster(workers) as broker:
        found = {"PSS of a node at rest, MB": _pss_mb(broker)}
        _produce(broker, records // 10)
        found["CPU of a record, us"] = _microseconds_each(
            broker, records, lambda count: _produce(broker, count)
        )
        found["CPU of an offset commit, us"] = _microseconds_each(
            broker, transactions, lambda count: _commit_offsets(broker, count)
        )
        commits_ms: list[float] = []
        found[f"CPU of a transaction over {PARTITIONS} partitions, us"] = _microseconds_each(
            broker, transactions, lambda count: _transact(broker, count, commits_ms)
        )
        found["commit of one, p50 ms"] = median(commits_ms)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--transactions", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rounds: dict[int, list[dict[str, float]]] = {workers: [] for workers in given.workers}
    for _ in range(given.rounds):
        for workers, found in rounds.items():
            found.append(measure(workers, given.records, given.transactions))
    print("| " + " | ".join(["what", *(f"{workers} node(s)" for workers in rounds)]) + " |")
    for name in rounds[given.workers[0]][0]:
        figures = [f"{median(each[name] for each in found):.3g}" for found in rounds.values()]
        print("| " + " | ".join([name, *figures]) + " |")


if __name__ == "__main__":
    main()
