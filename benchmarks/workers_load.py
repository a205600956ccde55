"""What nodes cost: the CPU of one and of two nodes for the same work, their memory, their rate.

CPU for an operation is the figure to compare: clients share the machine's cores. It is that of all
nodes together. One node and two take turns, so that a busy moment of the machine hits both; each
figure is the median of the turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import connection_load, java_load
from benchmarks.subjects import cpu_of_nodes, node_pids
from benchmarks.table import Row
from compat_tests import brokers
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker, MagnetarBroker

PARTITIONS = 4
NODES = 2
_BATCH = 500
_TURNS = 3
_TOPIC = "load"
_VALUE = b"x" * 100
_TIMEOUT_S = 60.0
_REST_S = 2.0


def measure(alone: Broker, *, records: int, transactions: int, seconds: float) -> dict[Row, float]:
    """Compare a broker of one node with one of two."""
    with _two_nodes() as two:
        subjects = [_Subject(one) for one in (alone, two)]
        found = _each("PSS of a node at rest", "MB", [one.pss_mb() for one in subjects])
        # A warm-up too: what was never run before costs more.
        for subject in subjects:
            subject.produce(records // 10)
            subject.transact(transactions // 10)
        label = f"CPU of a record, in batches of {_BATCH}"
        found |= _in_turns(label, subjects, records, _Subject.produce_batches)
        label = "CPU of a record, in batches as they come"
        found |= _in_turns(label, subjects, records, _Subject.produce)
        found |= _in_turns("CPU of an offset commit", subjects, transactions, _Subject.commit)
        label = f"CPU of a transaction over {PARTITIONS} partitions"
        found |= _in_turns(label, subjects, transactions, _Subject.transact)
        label = f"{label}, Java client, version 2"
        found |= _in_turns(label, subjects, transactions, _Subject.transact_in_java)
        label = f"EndTxn over {PARTITIONS} partitions, p50"
        found |= _each(label, "ms", [median(one.commits_ms) for one in subjects])
        found |= _small_clients(subjects, seconds)
        for subject in subjects:
            subject.close()
    return found


class _Subject:
    """One broker, and its clients, which stay the same for all turns."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        create_topic(broker.bootstrap, _TOPIC, PARTITIONS)
        servers = {"bootstrap.servers": broker.bootstrap}
        self._plain = Producer({**servers, "linger.ms": 5})
        # Each batch waits until it is full: two nodes get the same ones as one.
        full = {"linger.ms": 60_000, "batch.num.messages": _BATCH}
        self._batching = Producer({**servers, **full})
        self._transactional = Producer({**servers, "transactional.id": "load", "linger.ms": 0})
        self._transactional.init_transactions(_TIMEOUT_S)
        self._consumer = Consumer({**servers, "group.id": "load"})
        self._committed = 0
        self.commits_ms: list[float] = []

    def close(self) -> None:
        self._consumer.close()

    def cpu_us_each(self, count: int, work: Callable[[_Subject, int], None]) -> float:
        """Do `count` operations; return what each has cost all nodes."""
        before = cpu_of_nodes(self.broker)
        work(self, count)
        return (cpu_of_nodes(self.broker) - before) / count * 1e6

    def pss_mb(self) -> float:
        """Return the proportional memory of a node, the mean of all."""
        time.sleep(_REST_S)  # What a start leaves to do is not a node at rest.
        kilobytes = [
            int(line.split()[1])
            for pid in node_pids(self.broker)
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        ]
        return sum(kilobytes) / len(kilobytes) / 1024

    def produce(self, count: int) -> None:
        """Let the client decide what a batch is: it depends on how soon the last was answered."""
        _produce(self._plain, count)

    def produce_batches(self, count: int) -> None:
        """Produce in batches of `_BATCH`."""
        _produce(self._batching, count)

    def commit(self, count: int) -> None:
        for number in range(count):
            self._committed += 1
            offset = TopicPartition(_TOPIC, number % PARTITIONS, self._committed)
            self._consumer.commit(offsets=[offset], asynchronous=False)

    def transact(self, count: int) -> None:
        client = self._transactional
        for _ in range(count):
            client.begin_transaction()
            for partition in range(PARTITIONS):
                client.produce(_TOPIC, _VALUE, partition=partition)
            client.flush(_TIMEOUT_S)
            began_at = time.perf_counter()
            client.commit_transaction(_TIMEOUT_S)
            self.commits_ms.append((time.perf_counter() - began_at) * 1000)

    def transact_in_java(self, count: int) -> None:
        """As `transact`, by Kafka's own client: a Produce to each node, no AddPartitionsToTxn."""
        java_load.transact(self.broker, _TOPIC, PARTITIONS, count // 2)


def _produce(producer: Producer, count: int) -> None:
    for number in range(count):
        while True:
            try:
                producer.produce(_TOPIC, _VALUE, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(_TIMEOUT_S) == 0


@contextmanager
def _two_nodes() -> Iterator[MagnetarBroker]:
    with TemporaryDirectory(prefix="bench-workers-") as directory:
        broker = MagnetarBroker(Path(directory), workers=NODES)
        broker.settings = {}
        with brokers.running(broker):
            yield broker


def _in_turns(
    label: str, subjects: Sequence[_Subject], count: int, work: Callable[[_Subject, int], None]
) -> dict[Row, float]:
    turns = [[one.cpu_us_each(count, work) for one in subjects] for _ in range(_TURNS)]
    return _each(label, "us", [median(one) for one in zip(*turns, strict=True)])


def _small_clients(subjects: Sequence[_Subject], seconds: float) -> dict[Row, float]:
    loads = [
        connection_load.load_of(one.broker, connection_load.CLIENTS, seconds) for one in subjects
    ]
    label = f"{connection_load.CLIENTS} small clients"
    found = _each(f"{label}, CPU of a request", "us", [load.cpu_us_each for load in loads])
    rates = [load.rate for load in loads]
    return found | _each(f"{label}, rate", "per s", rates, more_is_better=True)


def _each(
    label: str, unit: str, figures: Sequence[float], *, more_is_better: bool = False
) -> dict[Row, float]:
    """Return a row for one node, one for two, and their ratio."""
    one, two = figures
    return {
        Row(f"{label}, 1 node", unit, more_is_better): one,
        Row(f"{label}, {NODES} nodes", unit, more_is_better): two,
        Row(f"{label}, {NODES} nodes / 1", "×", more_is_better): two / one,
    }
