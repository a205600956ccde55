"""Many partitions: ten to a topic, created, written to once, stopped, started, killed, deleted; and
as many in one topic, created and deleted.

The longest ping is that of an ApiVersions request every 2 ms meanwhile: how long the broker has
eyes for nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.frames import Frames
from benchmarks.subjects import resident_bytes
from benchmarks.table import Row
from compat_tests.brokers import Broker
from wire.message import Message
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import SimpleRecord, build_batch

_PARTITIONS = 10
#: Topics in one request.
_AT_ONCE = 20
PRODUCE = 8
_CREATE, _DELETE, _PING = 5, 5, 2
_PING_EVERY_S = 0.002


def measure(broker: Broker, *, topics: int) -> dict[Row, float]:
    """Every figure of `topics` topics."""
    names = [f"many-{number}" for number in range(topics)]
    groups = [names[first : first + _AT_ONCE] for first in range(0, topics, _AT_ONCE)]
    label = f"{topics * _PARTITIONS:,} partitions"
    took = {
        "created": _timed(lambda: _each(broker, groups, _create)),
        "written to for the first time": _timed(lambda: _each(broker, groups, _write)),
    }
    resident = resident_bytes(broker.pid)
    descriptors = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
    took["stopped"] = _timed(broker.stop)
    took["started after a clean stop"] = _timed(broker.start)
    _each(broker, groups, _write)
    broker.kill()
    took["started after kill -9"] = _timed(broker.start)
    ping = Ping(broker)
    took["deleted"] = _timed(lambda: _each(broker, groups, _delete))
    pings = {"while they are deleted": ping.end()}
    large = partial(_create, partitions=topics * _PARTITIONS)
    for work, done in ((large, "created"), (_delete, "deleted")):
        ping = Ping(broker)
        took[f"in one topic {done}"] = _timed(partial(_each, broker, [["large"]], work))
        pings[f"while they are {done} in one topic"] = ping.end()
    figures = {Row(f"{label} {done}", "s", False): seconds for done, seconds in took.items()}
    return {
        **figures,
        **{Row(f"longest ping {when}", "ms", False): longest for when, longest in pings.items()},
        Row(f"resident with {label}", "MB", False): resident / 1e6,
        Row(f"descriptors with {label}", "", False): descriptors,
    }


def _timed(work: Callable[[], object]) -> float:
    began_at = time.perf_counter()
    work()
    return time.perf_counter() - began_at


def _each(
    broker: Broker, groups: list[list[str]], work: Callable[[Frames, list[str]], None]
) -> None:
    with Frames(broker.bootstrap) as connection:
        for names in groups:
            work(connection, names)


def _create(connection: Frames, names: list[str], partitions: int = _PARTITIONS) -> None:
    topics = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
    ]
    request = CreateTopicsRequest(topics=topics, timeout_ms=60_000)
    answer = connection.call(request, CreateTopicsResponse, _CREATE)
    check([each.error_code for each in answer.topics])


def _write(connection: Frames, names: list[str]) -> None:
    batch = bytes(build_batch([SimpleRecord(b"k", b"x" * 100, int(time.time() * 1000))]))
    data = [
        TopicProduceData(
            name=name,
            partition_data=[
                PartitionProduceData(index=index, records=batch) for index in range(_PARTITIONS)
            ],
        )
        for name in names
    ]
    request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=data)
    answer = connection.call(request, ProduceResponse, PRODUCE)
    check([each.error_code for topic in answer.responses for each in topic.partition_responses])


def _delete(connection: Frames, names: list[str]) -> None:
    request: Message = DeleteTopicsRequest(topic_names=names, timeout_ms=60_000)
    answer = connection.call(request, DeleteTopicsResponse, _DELETE)
    check([each.error_code for each in answer.responses])


def check(codes: list[int]) -> None:
    """Fail for any error."""
    assert not any(codes), codes


class Ping:
    """Asks on a connection of its own until `end`."""

    def __init__(self, broker: Broker) -> None:
        self._connection = Frames(broker.bootstrap)
        self._is_ending = threading.Event()
        self._longest_s = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> float:
        """Return the longest answer, in ms."""
        self._is_ending.set()
        self._thread.join()
        return self._longest_s * 1000

    def _run(self) -> None:
        with self._connection as connection:
            while not self._is_ending.wait(_PING_EVERY_S):
                took_s = _timed(
                    lambda: connection.call(ApiVersionsRequest(), ApiVersionsResponse, _PING)
                )
                self._longest_s = max(self._longest_s, took_s)
