"""Strangers on a listener: what is no request closes its own connection; no other notices."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from struct import pack

import pytest

from magnetar.server.memory import SMALL_PARTIAL_BYTES
from tests.magnetar.served_broker import Client, ServedBroker, encoded, framed
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.list_offsets import ListOffsetsRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.offset_fetch import OffsetFetchRequest
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.records import SimpleRecord, build_batch

MEGABYTE = 1 << 20
FRAME_BYTES_MAX = 4 * MEGABYTE
PARTIAL_BYTES_MAX = 16 * MEGABYTE


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    settings = {
        "socket.request.max.bytes": str(FRAME_BYTES_MAX),
        "queued.max.request.bytes": str(PARTIAL_BYTES_MAX),
        "auto.create.topics.enable": "false",
    }
    with ServedBroker(tmp_path_factory.mktemp("broker"), settings) as served:
        yield served


@pytest.fixture(autouse=True)
def bystander(broker: ServedBroker) -> Iterator[Client]:
    """A client that was there before each test and must be served after it, as must a new one."""
    broker.until_clients_are_gone()
    with Client(broker.port) as client:
        client.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
        yield client
        assert client.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
    assert broker.serves()
    assert "Traceback" not in broker.log


@pytest.fixture
def stranger(broker: ServedBroker) -> Iterator[Client]:
    with Client(broker.port) as client:
        yield client


METADATA = encoded(MetadataRequest(topics=None), 12)


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\xff" * 64,
        pack(">i", 0),
        pack(">i", -1),
        pack(">i", -(2**31)),
        pack(">i", 2**31 - 1),
        pack(">i", FRAME_BYTES_MAX + 1),
    ],
    ids=["http", "tls", "ssh", "ones", "empty", "negative", "smallest", "largest", "one too many"],
)
def test_what_is_no_frame_closes_the_connection(stranger: Client, greeting: bytes) -> None:
    stranger.send(greeting)
    assert stranger.is_closed_by_broker()


def header(api_key: int, version: int, client_id: bytes = b"\0\x01x", tail: bytes = b"") -> bytes:
    return pack(">hhi", api_key, version, 7) + client_id + tail


@pytest.mark.parametrize(
    "frame",
    [
        b"\0",
        b"\0\x03\0\x0c\0\0",
        header(3, 1, b"\0\x64ab"),
        header(3, 1, b"\xff\xfe"),
        header(3, 1, b"\0\x02\xff\xff", b"\xff\xff\xff\xff"),
        header(3, 12),
        header(3, 1, tail=b"\0\0\0\x01"),
        header(3, 1, tail=b"\x7f\xff\xff\xff"),
        header(3, 1, tail=b"\0\0\0\x01\x7f\xffab"),
        header(3, 1, tail=b"\0\0\0\x01\0\x02\xff\xff"),
        header(3, 12, tail=b"\0\xff\xff\xff\xff\x0f"),
        header(3, 12, tail=b"\0\xff\xff\xff\xff\xff\xff"),
        header(3, 12, tail=b"\xff\xff\xff\xff\x0f"),
        header(3, 12, tail=b"\x01\0\xff\xff\xff\x7f"),
        header(0, 9, tail=b"\0\0\xff\xff\0\0\0\x01\xff\xff\xff\xff\x0f"),
        header(1, 4, tail=bytes(16) + b"\0\x7f\xff\xff\xff"),
    ],
    ids=lambda frame: frame.hex(),
)
def test_a_frame_that_is_no_request_closes_the_connection(stranger: Client, frame: bytes) -> None:
    stranger.send_frame(frame)
    assert stranger.is_closed_by_broker()


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(-1, 0), (999, 0), (2**15 - 1, 0), (4, 0), (7, 0), (3, -1), (3, 99), (0, 2), (1, 3), (1, 99)],
)
def test_an_unknown_api_or_version_closes_the_connection(
    stranger: Client, api_key: int, version: int
) -> None:
    stranger.send_frame(header(api_key, version, tail=bytes(20)))
    assert stranger.is_closed_by_broker()


@pytest.mark.parametrize("version", [-1, 6, 99, 2**15 - 1])
def test_an_unknown_version_of_api_versions_is_told_which_are_known(
    stranger: Client, version: int
) -> None:
    stranger.send_frame(header(18, version, tail=b"\xff" * 9))
    frame = stranger.receive_frame()
    assert frame[:4] == pack(">i", 7)
    answer = ApiVersionsResponse.decode(frame[4:], 0)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert any(api.api_key == ApiVersionsRequest.api_key for api in answer.api_keys)
    # The connection goes on: that is the point of the answer.
    assert stranger.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0


def test_what_came_before_the_garbage_is_answered(stranger: Client) -> None:
    good = encoded(MetadataRequest(topics=None), 12, correlation_id=1)
    stranger.send(framed(good) * 5 + framed(b"garbage") + framed(good))
    for _ in range(5):
        assert stranger.receive_frame()[:4] == pack(">i", 1)
    assert stranger.is_closed_by_broker()


def test_a_frame_may_come_byte_by_byte(stranger: Client) -> None:
    stranger.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in framed(METADATA):
        stranger.send(bytes([byte]))
    assert stranger.receive_frame()[:4] == pack(">i", 1)


def test_half_a_frame_and_gone_is_nothing(broker: ServedBroker) -> None:
    whole = framed(METADATA)
    for size_bytes in range(len(whole)):
        with Client(broker.port) as stranger:
            stranger.send(whole[:size_bytes])


def test_a_client_that_reads_no_answer_stops_no_other(
    broker: ServedBroker, stranger: Client
) -> None:
    stranger.socket.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        for _ in range(2000):
            stranger.send(framed(METADATA) * 100)
    assert broker.resident_bytes() < 200 * MEGABYTE


@pytest.mark.parametrize("announced_bytes", [FRAME_BYTES_MAX, 2 * MEGABYTE])
def test_two_hundred_announced_frames_cost_what_was_sent_of_them(
    broker: ServedBroker, bystander: Client, announced_bytes: int
) -> None:
    before = broker.resident_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stranger = stack.enter_context(Client(broker.port))
            stranger.send(pack(">i", announced_bytes) + bytes(1000))
        for _ in range(20):
            assert bystander.call(MetadataRequest(topics=None), MetadataResponse, 12) is not None
        assert broker.resident_bytes() - before < 20 * MEGABYTE


def test_two_hundred_half_sent_frames_are_bounded_together(
    broker: ServedBroker, bystander: Client
) -> None:
    before = broker.resident_bytes()
    with contextlib.ExitStack() as stack:
        send_halves(broker, stack)
        for _ in range(20):
            assert bystander.call(MetadataRequest(topics=None), MetadataResponse, 12) is not None
        # Beyond the limit each connection keeps what its first read brought. Of 400 MB in all.
        kept_bytes = PARTIAL_BYTES_MAX + 200 * SMALL_PARTIAL_BYTES
        assert broker.resident_bytes() - before < 2 * kept_bytes


def test_memory_of_half_sent_frames_is_given_back(broker: ServedBroker) -> None:
    """It was kept for as long as the broker ran."""
    before = broker.resident_bytes()
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            send_halves(broker, stack)
            time.sleep(1.5)  # The broker takes what was sent.
    deadline_s = time.monotonic() + 20
    while broker.resident_bytes() - before > PARTIAL_BYTES_MAX // 2:
        assert time.monotonic() < deadline_s, broker.resident_bytes() - before
        time.sleep(0.1)


def test_half_sent_frames_delay_no_small_request_that_comes_in_pieces(
    broker: ServedBroker, bystander: Client
) -> None:
    """It was not answered for as long as they stood there."""
    whole = framed(METADATA)
    with contextlib.ExitStack() as stack:
        send_halves(broker, stack)
        bystander.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size_bytes in range(1, len(whole), 5):
            bystander.send(whole[:size_bytes])
            time.sleep(0.01)  # Or both pieces would be read as one.
            bystander.send(whole[size_bytes:])
            bystander.receive_frame()


def send_halves(broker: ServedBroker, stack: contextlib.ExitStack) -> None:
    """Send two hundred requests of 2 MB each, without the last byte."""
    for _ in range(200):
        stranger = stack.enter_context(Client(broker.port))
        send_what_is_taken(stranger, pack(">i", 2 * MEGABYTE) + bytes(2 * MEGABYTE - 1))


def send_what_is_taken(client: Client, data: bytes) -> None:
    """Send until the broker has not taken more for a moment."""
    client.socket.settimeout(0.02)
    with contextlib.suppress(TimeoutError):
        client.send(data)


def some_requests() -> list[tuple[Message, int]]:
    """Return well-formed requests of many kinds, to be spoilt; none of them may create topics."""
    batch = bytes(build_batch([SimpleRecord(b"k", b"v" * 50, 1_700_000_000_000)]))
    data = PartitionProduceData(index=0, records=batch)
    produce = TopicProduceData(name="t", partition_data=[data])
    fetched = FetchTopic(topic="t", partitions=[FetchPartition(partition_max_bytes=1000)])
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"\0\0")
    return [
        (ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4),
        (MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9),
        (ProduceRequest(acks=1, timeout_ms=100, topic_data=[produce]), 8),
        (ProduceRequest(acks=-1, timeout_ms=100, topic_data=[produce]), 11),
        (FetchRequest(max_wait_ms=0, topics=[fetched]), 4),
        (FetchRequest(max_wait_ms=0, topics=[fetched]), 12),
        (ListOffsetsRequest(), 7),
        (FindCoordinatorRequest(coordinator_keys=["g", "h"]), 4),
        (InitProducerIdRequest(transaction_timeout_ms=1000), 4),
        (OffsetFetchRequest(group_id="g"), 7),
        (AddPartitionsToTxnRequest(v3_and_below_transactional_id="x"), 3),
        (JoinGroupRequest(group_id="g", session_timeout_ms=6000, protocols=[protocol]), 7),
    ]


def test_spoilt_requests_are_answered_or_close_their_connection(broker: ServedBroker) -> None:
    chance = random.Random(1)
    frames = [encoded(request, version) for request, version in some_requests()]
    for _ in range(1000):
        frame = bytearray(chance.choice(frames))
        for _ in range(chance.randint(1, 4)):
            # The API key stays, so that no other request comes of it.
            frame[chance.randrange(2, len(frame))] = chance.choice((0, 1, 127, 128, 255))
        if chance.random() < 0.3:
            del frame[chance.randrange(2, len(frame)) :]
        with Client(broker.port) as stranger:
            stranger.send_frame(bytes(frame))
            stranger.socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(EOFError):
                stranger.receive_frame()
    assert broker.serves()
