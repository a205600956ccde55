"""Requests of every API and version to a running broker, on several connections at once.

An input is a list of sends: the connection and whether to wait for an answer (one byte), a size
(four bytes), then so many bytes for the socket, the frame's own size among them. Two connections
are an administrator's, two have to log in first; the user who may log in is allowed nothing.

What a client learns from answers stands in an input as a placeholder of the same size: the ids of
topics, and of members of classic groups.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache, partial
from random import Random
from struct import Struct
from typing import Any
from uuid import UUID

from magnetar.apis.registry import Api, load_apis
from magnetar.broker import Broker
from tools.fuzz.batches import some_batch
from tools.fuzz.logins import PLAIN_TOKEN
from tools.fuzz.mutations import LIES, mutated
from tools.fuzz.server import WatchedBroker, served
from tools.fuzz.target import Target, judge
from tools.fuzz.tokens import first_message
from tools.fuzz.values import Words, message
from wire.errors import WireError
from wire.internal.consumer_protocol import ConsumerProtocolSubscription
from wire.internal.versioned import encode_versioned
from wire.message import Message
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wire.messages.header import RequestHeader, ResponseHeader
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.messages.sasl_authenticate import SaslAuthenticateRequest
from wire.messages.sasl_handshake import SaslHandshakeRequest
from wire.messages.sync_group import SyncGroupRequest
from wire.records import SimpleRecord, build_batch

_SEND = Struct(">BI")
_SIZE = Struct(">i")
_CONNECTIONS = ("PLAINTEXT", "PLAINTEXT", "SASL_PLAINTEXT", "SASL_PLAINTEXT")
_LOGGED_OUT, _LOGGED_IN = 2, 3
_LOGIN: tuple[Message, ...] = (
    SaslHandshakeRequest(mechanism="PLAIN"),
    SaslAuthenticateRequest(auth_bytes=PLAIN_TOKEN),
)
_WAITS = 0x80
_WAIT_S = 0.01
_TIMEOUT_S = 30.0
_API_VERSIONS = 18
_TOPICS = ("alpha", "beta")
#: No client is to get this who has not logged in, or who may not: a topic, and what is in it.
_GUARDED, _SECRET = "guarded-topic", b"the secret of the record"
_CLIENT_ID = "fuzz"
_TOPIC_IDS = {name: UUID(bytes=f"<id of {name}>".ljust(16, "_").encode()[:16]) for name in _TOPICS}
#: As long as the ids that the broker gives to members: the client's id, and a UUID.
_MEMBER_ID = f"{_CLIENT_ID}-<the latest member id>".ljust(len(_CLIENT_ID) + 37, "_")


def _one_of(*values: Any) -> Callable[[Random], Any]:
    return lambda random: random.choice(values)


def _metadata(random: Random) -> bytes:
    topics = random.sample(_TOPICS, random.randrange(3))
    return encode_versioned(ConsumerProtocolSubscription(topics=topics), random.randrange(4))


_some_topic = _one_of(*_TOPICS, *_TOPICS, _GUARDED, "new", "__consumer_offsets")
_some_group = _one_of("g", "h", "consumers")
_some_member = _one_of("", _MEMBER_ID, _MEMBER_ID, "m1", "m2")
_some_value = _one_of("compact", "delete", "-1", "0", "1", "x", "9" * 5000, "zstd", "LogAppendTime")
_NAMES_OF_TOPICS = " ".join(
    f"{struct}.name"
    for struct in (
        "TopicProduceData",
        "OffsetCommitRequestTopic",
        "TxnOffsetCommitRequestTopic",
        "OffsetFetchRequestTopics",
        "OffsetFetchRequestTopic",
        "ListOffsetsTopic",
        "AddPartitionsToTxnTopic",
        "DeleteRecordsTopic",
        "MetadataRequestTopic",
        "WritableTxnMarkerTopic",
    )
)
#: One maker of values for several fields.
_SHARED = (
    ("topic topics topic_name topic_names subscribed_topic_names", _some_topic),
    (_NAMES_OF_TOPICS, _some_topic),
    ("group_id groups groups_names key coordinator_keys", _some_group),
    ("member_id", _some_member),
    ("member_epoch generation_id generation_id_or_member_epoch", _one_of(-1, 0, 1, 1, 1, 2)),
    ("partition partition_index index partitions partition_indexes", _one_of(0, 0, 1, 7)),
    ("transactional_id transactional_ids v3_and_below_transactional_id", _one_of("t", "u")),
    ("max_wait_ms timeout_ms rebalance_timeout_ms", _one_of(0, 1, 5, 20)),
    ("current_leader_epoch leader_epoch", _one_of(-1, 0, 1)),
    ("value config_value", _some_value),
    ("max_bytes partition_max_bytes", _one_of(0, 1, 2**20)),
    # The judges rely on it that ada is allowed nothing.
    ("principal principal_filter", _one_of("User:bob", "User:", "x")),
)
_WORDS: Words = {
    **{name: some for names, some in _SHARED for name in names.split()},
    "topic_id": _one_of(*_TOPIC_IDS.values()),
    "name": _one_of(
        *_TOPICS, "new", "range", "cleanup.policy", "retention.ms", "max.message.bytes"
    ),
    "resource_name": _one_of(*_TOPICS, "0", "", "kafka-cluster", "g"),
    "resource_type": _one_of(2, 4, 8, 32),
    "session_timeout_ms": _one_of(1, 50, 10_000),
    "session_id": _one_of(0, 1),
    "session_epoch": _one_of(-1, 0, 1, 2),
    "transaction_timeout_ms": _one_of(1, 1_000),
    "group_instance_id": _one_of("i1", "i2"),
    "protocol_type": _one_of("consumer", "connect"),
    "protocol_name": _one_of("range", "sticky"),
    "subscribed_topic_regex": _one_of("a.*", "(a+)+$", "[", ".*"),
    "server_assignor": _one_of("uniform", "range"),
    "acks": _one_of(-1, 0, 1),
    "producer_id": _one_of(-1, 0, 0, 0, 1, 2),
    "producer_epoch": _one_of(-1, 0, 0, 0, 1),
    "JoinGroupRequestProtocol.name": _one_of("range", "sticky"),
    "SyncGroupRequestAssignment.assignment": lambda random: b"",
    "num_partitions": _one_of(-1, 1, 3, 2**31 - 1),
    "count": _one_of(1, 3, 2**31 - 1),
    "replication_factor": _one_of(-1, 1),
    "fetch_offset": _one_of(0, 1, 5, -1, 2**63 - 1),
    "replica_id": _one_of(-1),
    "host": _one_of("*", "127.0.0.1", ""),
    "metadata": _metadata,
    "records": some_batch,
    "mechanism": _one_of("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "x"),
    "auth_bytes": _one_of(
        PLAIN_TOKEN, b"\0ada\0wrong", b"n,,n=ada,r=x", first_message("e30.e30.e30"), b"\x01", b""
    ),
    "user": _one_of("bob"),
}


@cache
def _apis() -> list[Api]:
    return [api for _, api in sorted(load_apis().items())]


# Inputs.


def _generate(random: Random) -> bytes:
    sends = (
        [] if random.random() < 0.5 else [_send(0, request, version) for request, version in _WORLD]
    )
    # Half of the inputs log in, so that others than administrators ask for data.
    logins = list(_LOGIN) if random.random() < 0.5 else []
    for correlation_id in range(1, random.choice((3, 10, 40)) + 1):
        connection = _LOGGED_IN if logins else random.randrange(len(_CONNECTIONS))
        if logins:
            frame = encoded(logins.pop(0), 1, correlation_id)
        else:
            frame = _frame(random, correlation_id, connection)
        size = _SIZE.pack(len(frame))
        if random.random() < 0.01:
            size = random.choice(LIES)[:4].rjust(4, b"\0")
        waits = _WAITS * (random.random() < 0.7)
        data = size + frame
        sends.append(_SEND.pack(connection | waits, len(data)) + data)
    return b"".join(sends)


def _send(connection: int, request: Message, version: int) -> bytes:
    frame = encoded(request, version, 0)
    return _SEND.pack(connection | _WAITS, len(frame) + _SIZE.size) + _SIZE.pack(len(frame)) + frame


#: What an administrator does first, in half of the inputs: a transaction is open, groups have
#: members. Others meet it.
_WORLD: tuple[tuple[Message, int], ...] = (
    (InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1_000), 4),
    (
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=0,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="alpha", partitions=[0, 1])],
        ),
        3,
    ),
    (
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0" + bytes(8))],
        ),
        3,
    ),
    (SyncGroupRequest(group_id="g", generation_id=1, member_id=_MEMBER_ID), 2),
    (
        ConsumerGroupHeartbeatRequest(
            group_id="consumers",
            member_id="m1",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["alpha"],
            topic_partitions=[],
        ),
        1,
    ),
)


def _frame(random: Random, correlation_id: int, connection: int) -> bytes:
    if connection == _LOGGED_OUT and random.random() < 0.4:
        return encoded(random.choice(_LOGIN), random.choice((1, 1, 1, 0)), correlation_id)
    api = random.choice(_apis())
    version = random.randint(api.min_version, api.max_version)
    try:
        frame = encoded(
            message(random, api.request_class, version, _WORDS), version, correlation_id
        )
    except WireError:
        frame = encoded(api.request_class(), version, correlation_id)
    if random.random() < 0.12:
        # Behind the header, so that the answer can be told.
        return frame[:8] + mutated(random, frame[8:])
    return mutated(random, frame) if random.random() < 0.01 else frame


def encoded(request: Message, version: int, correlation_id: int) -> bytes:
    """Return header and body of a request."""
    header = RequestHeader(
        request_api_key=request.api_key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=_CLIENT_ID,
    )
    return header.encode(request.header_version(version)) + request.encode(version)


# Clients.


class _Client:
    """A connection: what was sent on it, and what came back."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)
        self.socket.settimeout(_TIMEOUT_S)
        self.sent = self.received = b""
        self.is_closed = False

    def send(self, data: bytes) -> None:
        with suppress(ConnectionError):
            if not self.is_closed:
                self.socket.sendall(data)
                self.sent += data

    def receive(self, wait_s: float) -> None:
        """Take what has arrived, or arrives within `wait_s`."""
        while not self.is_closed and select.select([self.socket], [], [], wait_s)[0]:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionError:
                data = b""
            self.is_closed = not data
            self.received += data
            wait_s = 0

    def call(self, request: Message, response_class: type[Message], version: int) -> Any:
        """Return the answer to a request of a client that behaves."""
        frame = encoded(request, version, 77)
        self.socket.sendall(_SIZE.pack(len(frame)) + frame)
        head = self._exactly(_SIZE.size)
        answer = self._exactly(_SIZE.unpack(head)[0])
        header, position = ResponseHeader.decode_from(
            answer, response_class.header_version(version)
        )
        judge(header.correlation_id == 77, "an answer has the correlation id of its request")
        return response_class.decode(answer[position:], version)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            judge(bool(more), "the connection of a client that behaves stays open")
            data += more
        return data


def _frames(stream: bytes) -> Iterator[bytes]:
    position = 0
    while position + _SIZE.size <= len(stream):
        (size,) = _SIZE.unpack_from(stream, position)
        position += _SIZE.size
        if not 0 < size <= len(stream) - position:
            return
        yield stream[position : position + size]
        position += size


def _judge_answers(client: _Client) -> list[Any]:
    """Raise Fault for an answer that fits no request; return all answers."""
    asked = iter([frame for frame in _frames(client.sent) if len(frame) >= 8])
    answers: list[Any] = []
    for answer in _frames(client.received):
        for frame in asked:
            if frame[4:8] == answer[:4]:
                answers.append(_decoded(frame, answer))
                break
        else:
            judge(False, f"an answer of correlation id {answer[:4].hex()} to no request")
    return answers


def _decoded(frame: bytes, answer: bytes) -> Any:
    key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
    api = load_apis()[key]
    if key == _API_VERSIONS and not api.min_version <= version <= api.max_version:
        version = 0
    judge(api.min_version <= version <= api.max_version, "only versions that are served are")
    _, position = ResponseHeader.decode_from(answer, api.response_class.header_version(version))
    return api.response_class.decode(answer[position:], version)


# Runs.


class _Story:
    """One input against one broker, with a client that behaves beside it."""

    def __init__(self, server: WatchedBroker, stack: ExitStack) -> None:
        self._server = server
        self._bystander = self._client(stack, "PLAINTEXT")
        for name in (*_TOPICS, _GUARDED):
            server.ask(partial(_make_topic, name))
        self._hide()
        self._places = {
            each.bytes: server.ask(partial(_topic_id, name)) for name, each in _TOPIC_IDS.items()
        }
        self._clients = [self._client(stack, listener) for listener in _CONNECTIONS]

    def _client(self, stack: ExitStack, listener: str) -> _Client:
        client = _Client(self._server.ports[listener])
        stack.callback(client.socket.close)
        return client

    def _hide(self) -> None:
        """Put the secret where only an administrator may find it."""
        batch = bytes(build_batch([SimpleRecord(b"k", _SECRET, 1_764_000_000_000)]))
        data = [PartitionProduceData(index=0, records=batch)]
        topics = [TopicProduceData(name=_GUARDED, partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
        self._bystander.call(request, ProduceResponse, 9)
        offset = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=_SECRET.decode()
        )
        commit = OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitRequestTopic(name=_GUARDED, partitions=[offset])]
        )
        self._bystander.call(commit, OffsetCommitResponse, 8)

    def perform(self, given: bytes) -> None:
        position = 0
        while position + _SEND.size <= len(given):
            first, size = _SEND.unpack_from(given, position)
            position += _SEND.size
            data = given[position : position + size]
            position += size
            for place, value in self._places.items():
                data = data.replace(place, value)
            client = self._clients[(first & ~_WAITS) % len(self._clients)]
            client.send(data)
            client.receive(_WAIT_S if first & _WAITS else 0)
            self._learn(client)
        self._judge()

    def _learn(self, client: _Client) -> None:
        """Remember the id that the broker has given to a member."""
        at = client.received.rfind(f"{_CLIENT_ID}-".encode())
        if at >= 0 and len(client.received) >= at + len(_MEMBER_ID):
            self._places[_MEMBER_ID.encode()] = client.received[at : at + len(_MEMBER_ID)]

    def _judge(self) -> None:
        versions = self._bystander.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
        judge(versions.error_code == 0, "a client that behaves is answered")
        for client, listener in zip(self._clients, _CONNECTIONS, strict=True):
            client.receive(0)
            if listener != "PLAINTEXT":
                judge(_SECRET not in client.received, "no data before login and permission")
                is_new = _GUARDED.encode() not in client.sent
                hidden = _GUARDED.encode() not in client.received
                judge(hidden or not is_new, "no name before login and permission")
            if listener == "PLAINTEXT" or not _has_bare_tokens(client):
                _judge_answers(client)
            client.socket.close()
        self._server.judge_accounts()
        self._server.judge()


def _make_topic(name: str, broker: Broker) -> None:
    broker.topics.create(name, 2)


def _topic_id(name: str, broker: Broker) -> bytes:
    topic = broker.topics.by_name(name)
    assert topic is not None
    return topic.id.bytes


def _has_bare_tokens(client: _Client) -> bool:
    """Whether a SaslHandshake of version 0 was sent: tokens without headers follow it."""
    return any(frame[:4] == b"\0\x11\0\0" for frame in _frames(client.sent))


def _run(given: bytes) -> None:
    with served() as server, ExitStack() as stack:
        _Story(server, stack).perform(given)


TARGET = Target("requests", _generate, _run, run_s_max=5.0)
