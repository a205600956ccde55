"""What a stranger on the network of the nodes can do: every bound holds, and is told once."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from magnetar.peers import listening, telling
from magnetar.peers.frames import STRANGER_BYTES_MAX, encode_request
from magnetar.peers.telling import News
from magnetar.runtime.peer_messages import PeerHelloRequest
from tests.magnetar.peer_cluster import Cluster, changed, node_tls

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Strangers:
    """Connections to one node that prove nothing."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self.streams: list[Stream] = []

    async def connect(self) -> Stream:
        stream = await asyncio.open_connection(*self._cluster.addresses[self._node_id])
        self.streams.append(stream)
        return stream

    async def send(self, data: bytes) -> bytes:
        """Send on a new connection; return what comes until it is closed."""
        reader, writer = await self.connect()
        writer.write(data)
        with suppress(ConnectionResetError):
            return await reader.read()
        return b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for _, writer in self.streams:
            writer.transport.abort()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path, over_tcp=True)
    yield cluster
    cluster.close()
    await asyncio.sleep(0)
    assert not cluster.failures


@pytest.fixture
async def strangers(cluster: Cluster) -> AsyncIterator[Strangers]:
    """They come to node 2, in plain text."""
    await cluster.start(2)
    with Strangers(cluster, 2) as strangers:
        yield strangers


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [*map(json.loads, capsys.readouterr().err.splitlines())]


@pytest.mark.parametrize("has_tls", [False, True])
async def test_connections_that_say_nothing_keep_no_node_out(
    cluster: Cluster, has_tls: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = node_tls() if has_tls else None
    one, _ = await cluster.start(1, tls=tls), await cluster.start(2, tls=tls)
    with Strangers(cluster, 2) as strangers:
        for _ in range(listening._STRANGERS_MAX + 10):
            await strangers.connect()
        await one.call(2, changed(1), 0)
        assert cluster.told == {2: [1]}
        # The oldest gave way: it reads its end.
        assert await strangers.streams[0][0].read() == b""
    (line,) = told(capsys)
    assert "64 others came before" in line["reason"]
    assert line["peer_address"].startswith("127.0.0.1:")


@pytest.mark.parametrize("has_tls", [False, True])
async def test_who_holds_many_connections_makes_room_by_its_own(
    cluster: Cluster, has_tls: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.start(2, tls=node_tls() if has_tls else None)
    # From far away: its first bytes take a while.
    reader, writer = await asyncio.open_connection(
        *cluster.addresses[2], local_addr=("127.0.0.2", 0)
    )
    with Strangers(cluster, 2) as strangers:
        for _ in range(listening._STRANGERS_MAX + 10):
            await strangers.connect()
        assert await strangers.streams[0][0].read() == b""
        writer.write(b"x" * 4)
        await reader.read()
        writer.close()
    of_strangers, of_the_other = told(capsys)
    assert "others came before" in of_strangers["reason"]
    assert of_the_other["peer_address"].startswith("127.0.0.2:")
    assert "others came before" not in of_the_other["reason"]


async def test_a_frame_that_comes_slowly_has_a_time(
    strangers: Strangers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listening, "PROOF_TIMEOUT_S", 0.01)
    for _ in range(3):
        assert await strangers.send(struct.pack(">i", 100) + b"x") == b""
    (line,) = told(capsys)
    assert line["reason"] == "it has not proven itself within 0.01 s"


async def test_a_large_frame_ends_at_its_size(
    strangers: Strangers, capsys: pytest.CaptureFixture[str]
) -> None:
    for size in (STRANGER_BYTES_MAX + 1, 2**31 - 1, 0, -1):
        assert await strangers.send(struct.pack(">i", size)) == b""
    (line,) = told(capsys)
    assert line["reason"] == "a frame of 4097 bytes, at most 4096 are read"


async def test_a_name_of_a_strangers_choice_is_cut_and_told_once(
    strangers: Strangers, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        name = f"{number}\n\x1b[2J" + "x" * 3000
        hello = PeerHelloRequest(cluster_id=name, node_id=1, nonce=b"n" * 32)
        assert await strangers.send(encode_request(hello, 0, 1)) == b""
    (line,) = told(capsys)
    assert len(line["reason"]) < 300 and "\n" not in line["reason"]


async def test_what_a_node_has_sent_is_good_for_one_connection(
    cluster: Cluster, strangers: Strangers, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = bytearray()
    address = cluster.addresses[2]

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward = await asyncio.open_connection(*address)

        async def back() -> None:
            while data := await onward_reader.read(4096):
                writer.write(data)

        returning = asyncio.create_task(back())
        while data := await reader.read(4096):
            sent.extend(data)
            onward.write(data)
        returning.cancel()
        onward.transport.abort()
        writer.transport.abort()

    async with await asyncio.start_server(record, "127.0.0.1", 0) as relay:
        cluster.addresses[2] = relay.sockets[0].getsockname()
        one = await cluster.start(1)
        await one.call(2, changed(1), 0)
        one.close()
    cluster.addresses[2] = address
    answered = await strangers.send(bytes(sent))
    assert answered, "the hello of a node is public"
    assert cluster.told == {2: [1]}


def test_what_is_said_is_forgotten_after_a_minute_and_where_too_much_is_said() -> None:
    now_s = 0.0
    news = News(lambda: now_s)
    assert news.is_new("a", "why") and not news.is_new("a", "why") and news.is_new("a", "else")
    now_s = 61.0
    assert news.is_new("a", "why") and not news.is_new("a", "why")
    for number in range(telling._KNOWN_MAX):
        assert news.is_new(str(number))
    assert len(news._said) == telling._KNOWN_MAX
    assert news.is_new("a", "why"), "the oldest was forgotten"
