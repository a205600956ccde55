"""The blocking client against brokers that are absent, silent, strange, old or many."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from struct import Struct
from typing import Any

import pytest

from magnetar.apis.registry import load_apis
from magnetar.client.cluster import Client, parse_addresses
from magnetar.client.connection import Connection
from magnetar.client.errors import ClientError, Refused, check
from magnetar.client.groups import list_groups
from magnetar.client.transactions import list_transactions
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from wire.messages.header import RequestHeader, ResponseHeader
from wire.messages.list_groups import ListGroupsResponse
from wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_SIZE = Struct(">i")
_START = Struct(">hh")

#: What one answer is made of: the request's key and version, and what was asked.
Script = Callable[[int, int, Message], Message]


class ScriptedBroker:
    """A peer that accepts connections one by one and does what its script says."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        self._answer = answer
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.address[1]}"

    def close(self) -> None:
        # A thread that waits in accept() is woken by shutdown(), not by close().
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection, suppress(ConnectionError):
                    self._answer(connection)


@contextmanager
def scripted(answer: Callable[[socket.socket], None]) -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker(answer)
    try:
        yield broker
    finally:
        broker.close()


def serving(script: Script) -> Callable[[socket.socket], None]:
    """Answer well-formed requests with what `script` returns, until the client hangs up."""

    def answer(connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        with stream:
            while size := stream.read(_SIZE.size):
                frame = stream.read(_SIZE.unpack(size)[0])
                key, version = _START.unpack_from(frame)
                asked = load_apis()[key].request_class
                header, start = RequestHeader.decode_from(frame, asked.header_version(version))
                response = script(key, version, asked.decode(frame[start:], version))
                body = ResponseHeader(correlation_id=header.correlation_id).encode(
                    response.header_version(version)
                ) + response.encode(version)
                connection.sendall(_SIZE.pack(len(body)) + body)

    return answer


def versions(**changes: int) -> ApiVersionsResponse:
    highest = {"3": 12, "10": 4, "65": 0, "66": 2, "18": 4, **changes}
    return ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=int(key), max_version=each) for key, each in highest.items()]
    )


def metadata(*brokers: tuple[int, int], topics: Any = ()) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port)
            for node, port in brokers
        ],
        topics=list(topics),
    )


def test_nobody_there_is_said_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ClientError, match=f"127.0.0.1:{port}: Connection refused.*Is it running"):
        Client(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("spoken", "complaint"),
    [
        (b"", "closed without an answer"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Kafka's protocol"),
        (_SIZE.pack(3) + b"abc", "an answer of 3 bytes"),
        (_SIZE.pack(2**31 - 1), "does not speak Kafka's protocol"),
        (_SIZE.pack(4) + _SIZE.pack(77), "an answer to request 77"),
        (_SIZE.pack(4) + _SIZE.pack(1), "does not speak Kafka's protocol"),
        (_SIZE.pack(1000) + b"half", "closed without an answer"),
    ],
)
def test_a_peer_that_is_no_broker_is_named(spoken: bytes, complaint: str) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(spoken)

    with scripted(answer) as broker, pytest.raises(ClientError, match=complaint) as failed:
        Client(broker.bootstrap)
    assert broker.bootstrap in str(failed.value)


def test_a_silent_peer_is_waited_for_no_longer_than_said() -> None:
    with (
        scripted(lambda connection: [*iter(lambda: connection.recv(100), b"")].clear()) as broker,
        pytest.raises(ClientError, match=r"did not answer ApiVersions within 0\.05 s"),
    ):
        Connection(broker.address, 0.05)


def test_the_first_address_that_answers_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    script = serving(lambda key, *_: versions() if key == 18 else metadata((7, 1)))
    with (
        scripted(script) as broker,
        Client(f"127.0.0.1:{port}, {broker.bootstrap}") as client,
    ):
        assert client.node_ids == [7]


def test_both_sides_versions_decide_and_what_is_too_old_is_named() -> None:
    asked: list[int] = []

    def script(key: int, version: int, request: Message) -> Message:
        asked.append(version)
        return versions(**{"66": 1}) if key == 18 else ListTransactionsResponse()

    with scripted(serving(script)) as broker:
        connection = Connection(broker.address, 5)
        connection.call(ListTransactionsRequest(), ListTransactionsResponse)
        assert asked == [0, 1]
        with pytest.raises(ClientError, match="does not serve ListTransactions version 2"):
            connection.call(ListTransactionsRequest(), ListTransactionsResponse, at_least=2)
        with pytest.raises(ClientError, match="cannot ask the broker that"):
            connection.call(
                DescribeTransactionsRequest(transactional_ids=["\ud800"]),
                DescribeTransactionsResponse,
            )
        connection.close()


@pytest.mark.parametrize("find_version", [3, 4])
def test_a_coordinator_is_asked_for_again_while_it_is_not_there(find_version: int) -> None:
    codes = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE]

    def script(key: int, version: int, request: Message) -> Message:
        if key == 18:
            return versions(**{"10": find_version})
        if key == 3:
            return metadata((1, 1), (2, 2))
        code = codes.pop(0)
        if find_version == 3:
            return FindCoordinatorResponse(error_code=code, node_id=2)
        found = Coordinator(key="tx", error_code=code, node_id=2)
        return FindCoordinatorResponse(coordinators=[found])

    with scripted(serving(script)) as broker, Client(broker.bootstrap) as client:
        assert client.coordinators(["tx"]) == {2: ["tx"]}
    assert not codes


def test_coordinators_of_many_are_found_in_one_question() -> None:
    questions: list[list[str]] = []

    def script(key: int, version: int, request: Any) -> Message:
        if key == 18:
            return versions()
        if key == 3:
            return metadata((1, 1), (2, 2))
        questions.append(request.coordinator_keys)
        found = [
            Coordinator(key=name, node_id=1 + int(name) % 2) for name in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=found)

    wanted = [str(number) for number in range(1000)]
    with scripted(serving(script)) as broker, Client(broker.bootstrap) as client:
        assert client.group_coordinators(wanted) == {1: wanted[::2], 2: wanted[1::2]}
        assert client.group_coordinators([]) == {}
    assert questions == [wanted]


def test_a_broker_whose_coordinators_load_is_asked_again_for_its_lists() -> None:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    answers: list[Message] = [
        ListTransactionsResponse(error_code=loading),
        ListTransactionsResponse(),
        ListGroupsResponse(error_code=loading),
        ListGroupsResponse(),
    ]

    served = versions(**{"16": 4, "66": 1})
    node_script = serving(lambda key, *_: served if key == 18 else answers.pop(0))
    with scripted(node_script) as node:
        listed = metadata((1, node.address[1]))
        script = serving(lambda key, *_: versions() if key == 18 else listed)
        with scripted(script) as broker, Client(broker.bootstrap) as client:
            assert list_transactions(client) == []
            assert list_groups(client) == []
    assert not answers


def test_an_unknown_topic_is_refused_and_leaderless_partitions_are_left_out() -> None:
    def script(key: int, version: int, request: Any) -> Message:
        if key == 18:
            return versions()
        if request.topics == []:
            return metadata((1, 1))
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if request.topics else ErrorCode.NONE
        partitions = [
            MetadataResponsePartition(partition_index=0, leader_id=1),
            MetadataResponsePartition(partition_index=1, leader_id=-1),
        ]
        found = MetadataResponseTopic(name="a", error_code=code, partitions=partitions)
        return metadata((1, 1), topics=[found])

    with scripted(serving(script)) as broker, Client(broker.bootstrap) as client:
        assert client.topics() == {("a", 0): 1}
        with pytest.raises(Refused, match="topic a: UNKNOWN_TOPIC_OR_PARTITION"):
            client.topics(["a"])


def test_a_broker_that_is_not_in_the_cluster_is_refused() -> None:
    script = serving(lambda key, *_: versions() if key == 18 else metadata((7, 1)))
    with (
        scripted(script) as broker,
        Client(broker.bootstrap) as client,
        pytest.raises(ClientError, match=r"broker 8 is not among \[7\]"),
    ):
        client.call(ListTransactionsRequest(), ListTransactionsResponse, node_id=8)


def test_addresses_are_what_kafkas_clients_take() -> None:
    assert parse_addresses("a:1, [::1]:2,:3") == [("a", 1), ("::1", 2), ("127.0.0.1", 3)]
    with pytest.raises(ClientError, match="nowhere is not host:port"):
        parse_addresses("nowhere")
    with pytest.raises(ClientError, match="not host:port: leave out PLAINTEXT://"):
        parse_addresses("PLAINTEXT://a:1")


def test_an_error_code_of_a_later_release_is_a_refusal_with_its_number() -> None:
    with pytest.raises(Refused, match="orders-0: error code 9999, of a later release") as refused:
        check(9999, "orders-0")
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
