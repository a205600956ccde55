"""Three nodes: magnetar over PostgreSQL, near and at a distance, and Kafka with three replicas.

Each figure is of all nodes together. Clients, nodes and databases share this machine's cores, so
rates say little beside CPU for an operation; latencies are of clients that do one thing at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from confluent_kafka import Producer

from benchmarks import connection_load, measures
from benchmarks.cluster_subjects import (
    DISTANCE_MS,
    NODES,
    Database,
    database_server,
    kafka_cluster,
    magnetar_cluster,
)
from benchmarks.store_load import commits_of
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.confluent_client import producer
from tools.postgresql import enterable_directory

PARTITIONS = 6
#: Beside rows of one broker that are called the same.
_WHERE = ", 3 nodes"
_TOPIC = "cluster"
_VALUE = b"x" * 100
_LARGE = b"x" * 1_000_000
_LARGE_BYTES_A_SECOND = 10_000_000
_BURST = 2 * PARTITIONS
#: The fewest have about one record in each commit.
_SMALL_CLIENTS = (6, 30, connection_load.CLIENTS)
_SAMPLE_S = 0.5
_MINUTES = 30


def measure(kind: str, *, rounds: int, seconds: float) -> dict[Row, float]:
    """Measure a cluster of three nodes of that kind."""
    if kind == "kafka":
        with kafka_cluster() as broker:
            return _latencies(broker, rounds, _WHERE) | _small_clients(broker, seconds)
    found = _commits_alone(seconds)
    with magnetar_cluster() as (broker, database):
        found |= _latencies(broker, rounds, _WHERE)
        found |= _small_clients(broker, seconds, database)
        size = Row("size of the table of nodes", "KB", False)
        found[size] = database.nodes_size_bytes() / 1e3
        found |= _beside_large(broker, rounds)
    with magnetar_cluster(is_distant=True) as (broker, _):
        found |= _latencies(broker, rounds, f"{_WHERE}, standby {DISTANCE_MS:g} ms away")
    return found | _growth(seconds)


def _commits_alone(seconds: float) -> dict[Row, float]:
    """What the store carries where no client has to be served."""
    with enterable_directory("bench-store-") as path, database_server(path) as server:
        done = commits_of(server.local_url, nodes=NODES, seconds=seconds)
    label = f"commits of 1 KB by {NODES} nodes without clients"
    cpu_us = done.cpu_seconds * 1e6 / len(done.took_ms)
    return {
        Row(f"{label}, rate", "per s", True): done.rate,
        Row(f"{label}, CPU of the nodes for one", "us", False): cpu_us,
        **_cuts(label, done.took_ms),
    }


def _latencies(broker: Broker, rounds: int, where: str) -> dict[Row, float]:
    """One record, EndTxn, and consume-process-produce, one after another."""
    create_topic(broker.bootstrap, _TOPIC, PARTITIONS)
    found = _produce(broker, rounds, f"one record acknowledged{where}")
    client = producer(broker.bootstrap, transactional_id="cluster", linger_ms=0)
    client.init_transactions(TIMEOUT_S)
    took = [_end_txn_ms(client) for _ in range(rounds // 4 + rounds)][rounds // 4 :]
    label = f"EndTxn over {PARTITIONS} partitions{where}"
    found |= _cuts(label, took)
    copied = measures.consume_process_produce(broker, rounds)
    return found | {
        row._replace(name=f"{row.name}{where}"): value
        for row, value in copied.items()
        if row.unit == "ms" and "group" not in row.name
    }


def _produce(broker: Broker, rounds: int, label: str) -> dict[Row, float]:
    client = producer(broker.bootstrap, linger_ms=0, acks="all")
    took: list[float] = []
    for number in range(rounds // 4 + rounds):
        began_at = time.perf_counter()
        client.produce(_TOPIC, _VALUE, partition=number % PARTITIONS)
        client.flush()
        took.append((time.perf_counter() - began_at) * 1000)
    return _cuts(label, took[rounds // 4 :])


def _end_txn_ms(client: Producer) -> float:
    client.begin_transaction()
    for partition in range(PARTITIONS):
        client.produce(_TOPIC, _VALUE, partition=partition)
    client.flush(TIMEOUT_S)
    began_at = time.perf_counter()
    client.commit_transaction(TIMEOUT_S)
    return (time.perf_counter() - began_at) * 1000


def _small_clients(
    broker: Broker, seconds: float, database: Database | None = None
) -> dict[Row, float]:
    """Many clients with one record each in flight: rates, and who has to work for it."""
    found: dict[Row, float] = {}
    counters = () if database is None else (database.commits, database.cpu_seconds)
    for count in _SMALL_CLIENTS:
        load = connection_load.load_of(broker, count, seconds, *counters)
        label = f"{count} small clients"
        found |= {
            Row(f"{label}, rate", "per s", True): load.rate,
            Row(f"{label}, p50", "ms", False): quantiles(load.latencies_ms, n=100)[49],
            Row(f"{label}, CPU of the nodes for a record", "us", False): load.cpu_us_each,
        }
        if database is not None:
            found |= _of_commits(label, load)
    return found


def _of_commits(label: str, load: connection_load.Load) -> dict[Row, float]:
    commits, database_s = load.counted
    records = len(load.latencies_ms)
    return {
        Row(f"{label}, CPU of PostgreSQL for a record", "us", False): database_s * 1e6 / records,
        Row(f"{label}, commits of 3 nodes", "per s", True): commits / load.seconds,
        Row(f"{label}, records of a commit", "records", True): records / commits,
        Row(f"{label}, CPU of nodes and PostgreSQL for a commit", "us", False): (
            (load.cpu_seconds + database_s) * 1e6 / commits
        ),
    }


def _beside_large(broker: Broker, rounds: int) -> dict[Row, float]:
    """One record at a time, while another client writes large batches to the same nodes."""
    create_topic(broker.bootstrap, "large", PARTITIONS)
    label = f"one record acknowledged beside 10 MB/s, {_BURST} batches of 1 MB at once"
    with _meanwhile(partial(_write_large, broker)):
        return _produce(broker, rounds, label)


def _write_large(broker: Broker, is_over: threading.Event) -> None:
    client = producer(
        broker.bootstrap, linger_ms=0, acks="all", message_max_bytes=2_000_000, batch_num_messages=1
    )
    due = time.monotonic()
    while not is_over.wait(max(due - time.monotonic(), 0)):
        for number in range(_BURST):
            client.produce("large", _LARGE, partition=number % PARTITIONS)
        client.poll(0)
        due += _BURST * len(_LARGE) / _LARGE_BYTES_A_SECOND
    client.flush(TIMEOUT_S)


@contextmanager
def _meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=(is_over,))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _growth(seconds: float) -> dict[Row, float]:
    """Return how large the tables are while batches move to a bucket, and what that comes to."""
    samples: list[tuple[float, int]] = []
    with TemporaryDirectory(prefix="bench-bucket-") as bucket:
        settings = {"cluster.objects": Path(bucket).as_uri()}
        with magnetar_cluster(settings=settings) as (broker, database):
            create_topic(broker.bootstrap, "large", PARTITIONS)
            with _meanwhile(partial(_write_large, broker)):
                end = time.monotonic() + 6 * seconds
                while (now := time.monotonic()) < end:
                    samples.append((now, database.size_bytes()))
                    time.sleep(_SAMPLE_S)
    half = samples[len(samples) // 2 :]
    slope = (half[-1][1] - half[0][1]) / (half[-1][0] - half[0][0])
    label = "10 MB/s with a bucket: tables"
    return {
        Row(f"{label} at most", "MB", False): max(size for _, size in samples) / 1e6,
        Row(f"{label} at the end", "MB", False): samples[-1][1] / 1e6,
        Row(f"{label} after {_MINUTES} minutes, extrapolated", "MB", False): (
            (samples[-1][1] + max(slope, 0) * _MINUTES * 60) / 1e6
        ),
    }


def _cuts(label: str, took_ms: list[float]) -> dict[Row, float]:
    cuts = quantiles(took_ms, n=100)
    return {
        Row(f"{label}, p50", "ms", False): cuts[49],
        Row(f"{label}, p99", "ms", False): cuts[98],
    }
