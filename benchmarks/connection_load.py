"""Many connections, each of which has one record in flight: the rate, its CPU time, its latency.

The load is frames that were built before, sent again by a callback as soon as the answer is there.
A round costs the client some microseconds, so that the broker is what is measured. Each
connection writes to one partition; the connections share the partitions evenly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from statistics import quantiles
from typing import NamedTuple

import uvloop
from confluent_kafka.admin import AdminClient

from benchmarks.frames import framed
from benchmarks.subjects import cpu_of_nodes
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from wire.message import Message
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import SimpleRecord, build_batch

PARTITIONS = 4
CLIENTS = 550
#: How many connections the latency is measured at.
STEPS = (10, 100, 1000)
_TOPIC = "clients"
_PRODUCE = 8
_RECORD_BYTES = 100
_SIZE_BYTES = 4
_CONNECT_AT_ONCE = 50
_WARM_UP_PARTS = 2


class Load(NamedTuple):
    """What a load has measured, once it was warm."""

    seconds: float
    cpu_seconds: float
    latencies_ms: list[float]
    #: How much each of the counters has grown.
    counted: list[float]

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.latencies_ms) / self.seconds

    @property
    def cpu_us_each(self) -> float:
        """The broker's CPU time for a request."""
        return self.cpu_seconds * 1e6 / len(self.latencies_ms)


def clients(broker: Broker, *, seconds: float) -> dict[Row, float]:
    """Return the rate of `CLIENTS` connections and what a request of theirs costs the broker."""
    load = load_of(broker, CLIENTS, seconds)
    label = f"{CLIENTS} clients, one record each in flight"
    return {
        Row(f"{label}, rate", "per s", True): load.rate,
        Row(f"{label}, broker CPU for a request", "us", False): load.cpu_us_each,
    }


def latency(broker: Broker, *, seconds: float) -> dict[Row, float]:
    """Return how long a record takes until it is acknowledged, by the number of connections."""
    figures: dict[Row, float] = {}
    for count in STEPS:
        cuts = quantiles(load_of(broker, count, seconds).latencies_ms, n=100)
        label = f"one record acknowledged to each of {count:,} connections"
        figures[Row(f"{label}, p50", "ms", False)] = cuts[49]
        figures[Row(f"{label}, p99", "ms", False)] = cuts[98]
    return figures


def load_of(
    broker: Broker, connections: int, seconds: float, *counters: Callable[[], float]
) -> Load:
    """Measure so many connections, each at the leader of its partition.

    `counters` are read at both ends of what is measured.
    """
    topic = f"{_TOPIC}-{connections}"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_drive(broker, topic, connections, seconds, counters))


async def _drive(
    broker: Broker,
    topic: str,
    connections: int,
    seconds: float,
    counters: Sequence[Callable[[], float]],
) -> Load:
    loop = asyncio.get_running_loop()
    leaders = _leaders(broker, topic)
    frames = [_frame(topic, partition) for partition in range(PARTITIONS)]
    error_at = _error_at(topic)
    took_ms: list[float] = []
    failed: asyncio.Future[None] = loop.create_future()
    opened: list[_Client] = []
    for first in range(0, connections, _CONNECT_AT_ONCE):
        made = await asyncio.gather(
            *(
                loop.create_connection(
                    lambda number=number: _Client(  # type: ignore[misc]  # a default binds it now
                        frames[number % PARTITIONS], error_at, took_ms.append, failed
                    ),
                    *leaders[number % PARTITIONS],
                )
                for number in range(first, min(first + _CONNECT_AT_ONCE, connections))
            )
        )
        opened += [client for _, client in made]
    for client in opened:
        client.send()
    await _during(seconds / _WARM_UP_PARTS, failed)
    took_ms.clear()
    before = [count() for count in counters]
    cpu_before, began_at = cpu_of_nodes(broker), time.perf_counter()
    await _during(seconds, failed)
    took_s, cpu_s = time.perf_counter() - began_at, cpu_of_nodes(broker) - cpu_before
    counted = [count() - earlier for count, earlier in zip(counters, before, strict=True)]
    load = Load(took_s, cpu_s, took_ms.copy(), counted)
    for client in opened:
        client.close()
    return load


def _leaders(broker: Broker, topic: str) -> list[tuple[str, int]]:
    """Return where each partition's leader listens."""
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(topic, TIMEOUT_S)
    partitions = metadata.topics[topic].partitions
    leading = [metadata.brokers[partitions[index].leader] for index in range(PARTITIONS)]
    return [(str(node.host), int(node.port)) for node in leading]


async def _during(seconds: float, failed: asyncio.Future[None]) -> None:
    """Let the load go on. Raises what a client has failed with."""
    await asyncio.wait((failed,), timeout=seconds)
    if failed.done():
        failed.result()


class _Client(asyncio.Protocol):
    """A connection that sends its frame, and again whenever it was answered."""

    def __init__(
        self,
        frame: bytes,
        error_at: int,
        note_ms: Callable[[float], None],
        failed: asyncio.Future[None],
    ) -> None:
        self._frame = frame
        self._error_at = error_at
        self._note_ms = note_ms
        self._failed = failed
        self._received = b""
        self._sent_at = 0.0
        self._is_closing = False
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The event loop makes it; uvloop's class is no subclass of asyncio's.
        self._transport = transport  # type: ignore[assignment]  # uvloop's class is no subclass

    def send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._frame)

    def close(self) -> None:
        self._is_closing = True
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._received:
            data = self._received + data
        if len(data) < _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], "big"):
            self._received = data
            return
        self._received = b""
        self._note_ms((time.perf_counter() - self._sent_at) * 1000)
        error = data[self._error_at : self._error_at + 2]
        if error != b"\0\0":
            self._fail(RuntimeError(f"error {int.from_bytes(error, 'big')}"))
        elif not self._is_closing:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_closing:
            self._fail(ConnectionError(f"the broker closed the connection: {exc}"))

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)


def _frame(topic: str, partition: int) -> bytes:
    record = SimpleRecord(None, b"x" * _RECORD_BYTES, time.time_ns() // 1_000_000)
    data = PartitionProduceData(index=partition, records=build_batch([record]))
    request: Message = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    return framed(request, _PRODUCE)


def _error_at(topic: str) -> int:
    """Return where the error code of an answer stands.

    Before it: size, correlation id, count of topics, the topic, count of partitions, partition.
    """
    assert ProduceResponse.header_version(_PRODUCE) == 0
    return 4 + 4 + 4 + 2 + len(topic) + 4 + 4
