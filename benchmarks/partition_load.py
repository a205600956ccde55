"""Many partitions: ten to a topic, created, written to once, stopped, started, killed, deleted; and
nearly as many in one topic, created and deleted.

The longest ping is that of an ApiVersions request every 2 ms meanwhile: how long the broker has
eyes for nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.frames import FETCH_VERSION, Frames
from benchmarks.subjects import resident_bytes
from benchmarks.table import Row
from compat_tests.brokers import Broker
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import SimpleRecord, build_batch

_PARTITIONS = 10
#: Kafka makes fewer than 10,000 partitions at once.
_IN_ONE_OF_TEN = 9
#: Topics in one request.
_AT_ONCE = 20
PRODUCE = 8
_CREATE, _DELETE, _PING = 5, 5, 2
_PING_EVERY_S = 0.002
_NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
_LEADERS_WITHIN_S = 60.0


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
    with Frames(broker.bootstrap) as connection:
        ping = Ping(broker)
        frame = _fetch(connection, names)
        # Before the answer is decoded: that would hold up the pings, which are of this process.
        pings = {"while one request fetches them": ping.end()}
    _check_fetched(frame)
    ping = Ping(broker)
    took["deleted"] = _timed(lambda: _each(broker, groups, _delete))
    pings["while they are deleted"] = ping.end()
    figures = {Row(f"{label} {done}", "s", False): seconds for done, seconds in took.items()}
    in_one = topics * _IN_ONE_OF_TEN
    large = partial(_create, partitions=in_one)
    for work, done in ((large, "created"), (_delete, "deleted")):
        ping = Ping(broker)
        seconds = _timed(partial(_each, broker, [["large"]], work))
        figures[Row(f"{in_one:,} partitions in one topic {done}", "s", False)] = seconds
        pings[f"while they are {done} in one topic"] = ping.end()
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
    """Write a record to each partition; where Kafka has yet to make its leader, once it has."""
    batch = bytes(build_batch([SimpleRecord(b"k", b"x" * 100, int(time.time() * 1000))]))
    waiting = {name: list(range(_PARTITIONS)) for name in names}
    deadline = time.monotonic() + _LEADERS_WITHIN_S
    while waiting:
        assert time.monotonic() < deadline, f"no leader for {waiting}"
        data = [
            TopicProduceData(
                name=name,
                partition_data=[
                    PartitionProduceData(index=each, records=batch) for each in indexes
                ],
            )
            for name, indexes in waiting.items()
        ]
        request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=data)
        answer = connection.call(request, ProduceResponse, PRODUCE)
        waiting = {}
        for topic in answer.responses:
            for each in topic.partition_responses:
                if each.error_code in _NOT_YET:
                    waiting.setdefault(topic.name, []).append(each.index)
                else:
                    check([each.error_code])


def _fetch(connection: Frames, names: list[str]) -> bytes:
    """Fetch all partitions at their ends; return the answer as it came."""
    partitions = [
        # Two records were written to each: one before the stop, one after it.
        FetchPartition(partition=index, fetch_offset=2, partition_max_bytes=1 << 20)
        for index in range(_PARTITIONS)
    ]
    topics = [FetchTopic(topic=name, partitions=partitions) for name in names]
    connection.send(FETCH_VERSION, FetchRequest(topics=topics))
    return connection.receive_frame()


def _check_fetched(frame: bytes) -> None:
    answer = FetchResponse.decode(
        frame[4 + FetchResponse.header_version(FETCH_VERSION) :], FETCH_VERSION
    )
    check([each.error_code for topic in answer.responses for each in topic.partitions])


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
