"""What is measured through librdkafka and confluent-kafka: throughput, latency, transactions,
rest.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import quantiles

from confluent_kafka import Producer, TopicPartition

from benchmarks import librdkafka
from benchmarks.subjects import cpu_seconds, resident_bytes
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.confluent_client import consumer, producer, send
from compat_tests.raw import Closed, Connection, batch

PARTITIONS = 4
MANY_PARTITIONS = 1000
_SMALL_BYTES = 100
_SIZES = {100: "100 B", 1024: "1 KB", 10240: "10 KB"}


def throughput(broker: Broker, megabytes: int) -> dict[Row, float]:
    """Produce and consume each record size through librdkafka's C interface, after a warm-up."""
    found: dict[Row, float] = {}
    create_topic(broker.bootstrap, "warm-up", PARTITIONS)
    librdkafka.produce(broker.bootstrap, "warm-up", megabytes * 500, 1024, PARTITIONS)
    for size_bytes, label in _SIZES.items():
        topic = f"throughput-{size_bytes}"
        create_topic(broker.bootstrap, topic, PARTITIONS)
        count = megabytes * 1_000_000 // max(size_bytes, 400)
        cpu_before = cpu_seconds(broker.pid)
        took_s = librdkafka.produce(broker.bootstrap, topic, count, size_bytes, PARTITIONS)
        cpu_s = cpu_seconds(broker.pid) - cpu_before
        rate = count * size_bytes / 1e6 / took_s
        found[Row(f"produce {label}, acks=all, librdkafka", "MB/s", True)] = rate
        millions = count / 1e6
        row = Row(f"broker CPU to take in a million of {label}", "s", False)
        found[row] = cpu_s / millions
        cpu_before = cpu_seconds(broker.pid)
        took_s = librdkafka.consume(broker.bootstrap, topic, count, PARTITIONS)
        cpu_s = cpu_seconds(broker.pid) - cpu_before
        rate = count * size_bytes / 1e6 / took_s
        found[Row(f"consume {label}, librdkafka", "MB/s", True)] = rate
        found[Row(f"broker CPU to give out a million of {label}", "s", False)] = cpu_s / millions
    return found


def many_partitions(broker: Broker, records: int) -> dict[Row, float]:
    """Produce small records round robin to many partitions, with a linger of 5 ms."""
    create_topic(broker.bootstrap, "warm-up", PARTITIONS)
    librdkafka.produce(broker.bootstrap, "warm-up", records, _SMALL_BYTES, PARTITIONS)
    topic = "many-partitions"
    create_topic(broker.bootstrap, topic, MANY_PARTITIONS)
    cpu: list[float] = []

    def note_cpu() -> None:
        cpu.append(cpu_seconds(broker.pid))

    took_s = librdkafka.produce(
        broker.bootstrap,
        topic,
        records,
        _SMALL_BYTES,
        MANY_PARTITIONS,
        # Making a thousand partitions goes on after the answer in Kafka, and is not what is asked.
        on_start=note_cpu,
        linger_ms="5",
    )
    note_cpu()
    cpu_s = cpu[1] - cpu[0]
    label = f"100 B over {MANY_PARTITIONS:,} partitions"
    return {
        Row(f"produce {label}, linger 5 ms, acks=all, librdkafka", "records/s", True): records
        / took_s,
        Row(f"broker CPU to take in a million of {label}", "s", False): cpu_s * 1e6 / records,
    }


def latency(broker: Broker, rounds: int) -> dict[Row, float]:
    """One record at a time: from produce to its acknowledgement, acks=all, no linger."""
    create_topic(broker.bootstrap, "latency")
    client = producer(broker.bootstrap, linger_ms=0, acks="all")

    def one() -> None:
        client.produce("latency", b"x" * 100, partition=0)
        client.flush()

    _timed(one, rounds)  # A JVM compiles what it runs often: let it.
    middle, high = _timed(one, rounds)
    return {
        Row("one record acknowledged, p50", "ms", False): middle,
        Row("one record acknowledged, p99", "ms", False): high,
    }


def transactions(broker: Broker, rounds: int) -> dict[Row, float]:
    """Begin, write, commit: one partition, four partitions, eight producers at once."""
    create_topic(broker.bootstrap, "transactions", PARTITIONS)
    found: dict[Row, float] = {}
    for partitions in (1, PARTITIONS):
        client = _transactional(broker, f"bench-{partitions}")
        _timed(partial(_transact, client, partitions), rounds)
        began_at = time.perf_counter()
        middle, high = _timed(partial(_transact, client, partitions), rounds)
        rate = rounds / (time.perf_counter() - began_at)
        label = f"transaction, {partitions} record{'s' * (partitions > 1)} each its partition"
        found[Row(f"{label}, p50", "ms", False)] = middle
        found[Row(f"{label}, p99", "ms", False)] = high
        found[Row(f"{label}, rate", "per s", True)] = rate
    found[Row("8 producers, 4 partitions each, rate", "per s", True)] = _together(broker, rounds)
    return found


def _together(broker: Broker, rounds: int) -> float:
    clients = [_transactional(broker, f"bench-of-8-{number}") for number in range(8)]

    def work(client: Producer) -> None:
        for _ in range(rounds):
            _transact(client, PARTITIONS)

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    began_at = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(clients) * rounds / (time.perf_counter() - began_at)


def _transactional(broker: Broker, transactional_id: str) -> Producer:
    client = producer(broker.bootstrap, transactional_id=transactional_id, linger_ms=0)
    client.init_transactions(TIMEOUT_S)
    _transact(client, PARTITIONS)
    return client


def _transact(client: Producer, partitions: int) -> None:
    client.begin_transaction()
    for partition in range(partitions):
        client.produce("transactions", b"x" * 100, partition=partition)
    client.commit_transaction(TIMEOUT_S)


def consume_process_produce(broker: Broker, rounds: int) -> dict[Row, float]:
    """Read one record, write one, send the offset, commit."""
    create_topic(broker.bootstrap, "source")
    create_topic(broker.bootstrap, "transactions-out")
    send(producer(broker.bootstrap), "source", [(None, b"x" * 100)] * (2 * rounds + 50))
    reader = consumer(broker.bootstrap, "bench-cpp", isolation_level="read_committed")
    joined_at = time.perf_counter()
    reader.subscribe(["source"])
    while not reader.assignment():
        reader.poll(0.01)
    join_ms = (time.perf_counter() - joined_at) * 1000
    client = producer(broker.bootstrap, transactional_id="bench-cpp", linger_ms=0)
    client.init_transactions(TIMEOUT_S)

    def one() -> None:
        message = reader.poll(TIMEOUT_S)
        assert message is not None
        value, offset = message.value(), message.offset()
        assert offset is not None
        client.begin_transaction()
        client.produce("transactions-out", value)
        client.send_offsets_to_transaction(
            [TopicPartition("source", 0, offset + 1)],
            reader.consumer_group_metadata(),
            TIMEOUT_S,
        )
        client.commit_transaction(TIMEOUT_S)

    _timed(one, rounds // 2)
    began_at = time.perf_counter()
    middle, high = _timed(one, rounds)
    rate = rounds / (time.perf_counter() - began_at)
    reader.close()
    return {
        Row("first member joins a group", "ms", False): join_ms,
        Row("consume, process, produce with offsets, p50", "ms", False): middle,
        Row("consume, process, produce with offsets, p99", "ms", False): high,
        Row("consume, process, produce with offsets, rate", "per s", True): rate,
    }


def start_and_rest(broker: Broker, connections: int) -> dict[Row, float]:
    """Restart it, time the first acknowledgement, look at it at rest, then with idle
    connections.
    """
    create_topic(broker.bootstrap, "first")
    broker.stop()
    first_ack_ms = _first_ack_ms(broker)
    time.sleep(2.0)
    at_rest = resident_bytes(broker.pid)
    cpu_before = cpu_seconds(broker.pid)
    time.sleep(3.0)
    idle_cpu = (cpu_seconds(broker.pid) - cpu_before) / 3.0 * 100
    with ExitStack() as stack:
        for _ in range(connections):
            opened = socket.create_connection(("127.0.0.1", broker.port))
            stack.callback(opened.close)
        time.sleep(1.0)
        added = resident_bytes(broker.pid) - at_rest
    return {
        Row("start to first acknowledgement", "ms", False): first_ack_ms,
        Row("resident at rest", "MB", False): at_rest / 1e6,
        Row(f"{connections} idle connections add", "MB", False): max(added, 0) / 1e6,
        Row("CPU at rest", "% of a core", False): idle_cpu,
    }


def _first_ack_ms(broker: Broker) -> float:
    """Return the time from the start of the process to the answer of a first Produce."""
    began_at = time.perf_counter()
    broker.spawn()
    while True:
        try:
            with Connection(broker.bootstrap) as connection:
                if connection.produce("first", batch([b"first"])).error_code == 0:
                    return (time.perf_counter() - began_at) * 1000
        except (OSError, Closed):
            pass
        assert time.perf_counter() - began_at < TIMEOUT_S, broker.output()
        time.sleep(0.005)


def _timed(one: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Return p50 and p99 of one call, in ms."""
    took: list[float] = []
    for _ in range(rounds):
        began_at = time.perf_counter()
        one()
        took.append((time.perf_counter() - began_at) * 1000)
    cuts = quantiles(took, n=100)
    return cuts[49], cuts[98]
