"""Requests as frames over a socket, built with magnetar's own codec: many at once, none repeated.

For loads that no client library makes quickly, such as 10^5 aborted transactions. Works with any
broker that speaks the versions asked for.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from compat_tests.client import TIMEOUT_S
from wire.message import Message
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.header import RequestHeader
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import SimpleRecord, build_batch

M = TypeVar("M", bound=Message)

#: A coordinator that loads, a last transaction that still ends: COORDINATOR_LOAD_IN_PROGRESS,
#: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS.
NOT_YET = frozenset({14, 15, 16, 51})
FETCH_VERSION = 12
_READ_BYTES = 1 << 20


class Identity(NamedTuple):
    """A transactional producer as the broker knows it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Frames:
    """One connection; answers come in the order of the requests."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def __enter__(self) -> Frames:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, version: int, *requests: Message) -> None:
        """Send requests of one version in one write."""
        self._socket.sendall(b"".join(framed(request, version) for request in requests))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def set_timeout(self, seconds: float) -> None:
        """Limit how long one send or receive may take."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, which is readable while an answer is unread."""
        return self._socket.fileno()

    def receive_frame(self) -> bytes:
        """Return the next answer, its size left out."""
        size = struct.unpack(">i", self._exactly(4))[0]
        return self._exactly(size)

    def receive(self, response_class: type[M], version: int) -> M:
        frame = self.receive_frame()
        return response_class.decode(frame[4 + response_class.header_version(version) :], version)

    def call(self, request: Message, response_class: type[M], version: int) -> M:
        self.send(version, request)
        return self.receive(response_class, version)

    def _exactly(self, size: int) -> bytes:
        buffer = self._received
        while len(buffer) < size:
            part = self._socket.recv(_READ_BYTES)
            if not part:
                raise ConnectionError("the broker closed the connection")
            buffer += part
        taken = bytes(buffer[:size])
        del buffer[:size]
        return taken


def framed(request: Message, version: int) -> bytes:
    """Return a request with its header and size, ready to be sent any number of times."""
    header = RequestHeader(
        request_api_key=request.api_key,
        request_api_version=version,
        correlation_id=0,
        client_id="bench",
    )
    body = header.encode(request.header_version(version)) + request.encode(version)
    return struct.pack(">i", len(body)) + body


def eventually(ask: Callable[[], int], accepted: str) -> None:
    """Repeat a request every millisecond while its error code says: not yet."""
    deadline = time.monotonic() + TIMEOUT_S
    while (code := ask()) in NOT_YET:
        assert time.monotonic() < deadline, f"{accepted}: still {code}"
        time.sleep(0.001)
    assert code == 0, f"{accepted}: {code}"


def new_producers(connections: Sequence[Frames], names: Sequence[str]) -> list[Identity]:
    """Return an identity for each transactional id, asked for on all connections at once."""
    found: list[Identity] = []
    first = connections[0]
    finding = FindCoordinatorRequest(key=names[0], key_type=1)
    eventually(lambda: first.call(finding, FindCoordinatorResponse, 2).error_code, "coordinator")
    for start in range(0, len(names), len(connections)):
        asked = list(zip(connections, names[start : start + len(connections)], strict=False))
        for connection, name in asked:
            _ask_for_producer(connection, name)
        for connection, name in asked:
            answer = connection.receive(InitProducerIdResponse, 4)
            while answer.error_code in NOT_YET:
                time.sleep(0.01)
                _ask_for_producer(connection, name)
                answer = connection.receive(InitProducerIdResponse, 4)
            assert answer.error_code == 0, answer
            found.append(Identity(name, answer.producer_id, answer.producer_epoch))
    return found


def _ask_for_producer(connection: Frames, name: str) -> None:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=600_000)
    connection.send(4, request)


def add_partitions(
    connection: Frames, who: Identity, topic: str, partitions: Sequence[int]
) -> None:
    """Begin a transaction of version 1 with these partitions, as soon as it may begin."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=who.transactional_id,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
    )

    def ask() -> int:
        answer = connection.call(request, AddPartitionsToTxnResponse, 3)
        (found,) = answer.results_by_topic_v3_and_below
        return max(each.partition_error_code for each in found.results_by_partition)

    eventually(ask, f"{who.transactional_id} adds")


def end_request(who: Identity, *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=who.transactional_id,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        committed=commit,
    )


def end(connection: Frames, who: Identity, *, commit: bool) -> float:
    """End a transaction of version 1; return how long the answer took, in ms."""
    request = end_request(who, commit=commit)
    began_at = time.perf_counter()
    answer = connection.call(request, EndTxnResponse, 3)
    took_ms = (time.perf_counter() - began_at) * 1000
    assert answer.error_code == 0, answer
    return took_ms


def produce_request(topic: str, who: Identity, sequence: int, values: list[bytes]) -> Message:
    """Return a Produce of one transactional batch to partition 0."""
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch(
        [SimpleRecord(None, value, now_ms) for value in values],
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    data = PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        transactional_id=who.transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def produced(answer: ProduceResponse) -> int:
    """Return the error code of a Produce to one partition."""
    return answer.responses[0].partition_responses[0].error_code


def fetch_request(topic: str, offset: int, max_bytes: int) -> FetchRequest:
    """Return a read_committed Fetch of partition 0, outside any session, that does not wait."""
    partition = FetchPartition(fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_bytes=max_bytes,
        isolation_level=1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )


def fetched(connection: Frames, request: FetchRequest) -> tuple[float, FetchResponse]:
    """Return how long a Fetch took, in ms, until its last byte was here; and the answer."""
    began_at = time.perf_counter()
    connection.send(FETCH_VERSION, request)
    frame = connection.receive_frame()
    took_ms = (time.perf_counter() - began_at) * 1000
    head = 4 + FetchResponse.header_version(FETCH_VERSION)
    return took_ms, FetchResponse.decode(frame[head:], FETCH_VERSION)
