"""TLS between nodes: what is on the wire, whom a node believes, and what it says of the others."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import uvloop

from magnetar.config.load import ConfigError
from magnetar.config.security import SecurityConfig
from magnetar.peers import node_peers, tls
from magnetar.peers.node_peers import NodePeers
from magnetar.peers.tls import PeerTls
from magnetar.runtime.peers import PeerUnreachable
from magnetar.testing.certificates import COMMON_NAME, KeyPair, make, named
from tests.magnetar.peer_cluster import AUTHORITY, NODE, Cluster, changed, node_tls, tls_settings

CHECKS_NO_HOST = {"ssl.endpoint.identification.algorithm": ""}
STRANGERS = make(named((COMMON_NAME, "another authority")))


def pair(authority: KeyPair = AUTHORITY, host: str = "127.0.0.1", **other: bool) -> KeyPair:
    return make(named((COMMON_NAME, "node")), authority, hosts=[host], **other)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, over_tcp=True)


def on_uvloop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on the event loop of `serve`, which tells of TLS in steps and words of its own."""

    async def perform(**arguments: Any) -> None:
        cluster: Cluster = arguments["cluster"]
        try:
            await test(**arguments)
        finally:
            cluster.close()
            for _ in range(10):
                # Until uvloop has closed what is aborted.
                await asyncio.sleep(0)
        assert not cluster.failures

    @wraps(test)
    def run(**arguments: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(perform(**arguments))

    return run


@asynccontextmanager
async def relayed(
    cluster: Cluster,
    node_id: int,
    seen: tuple[bytearray, bytearray],
    between: PeerTls | None = None,
) -> AsyncIterator[None]:
    """Put a relay between nodes, which sees all that they say to each other.

    `between`: what the relay speaks to both sides; None: it passes on what comes.
    """
    target = cluster.addresses[node_id]
    writers: list[StreamWriter] = []

    async def pump(reader: StreamReader, writer: StreamWriter, passed: bytearray) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                passed += data
                writer.write(data)
        writer.transport.abort()

    async def accepted(reader: StreamReader, writer: StreamWriter) -> None:
        dialling = between.dialling() if between else None
        onward_reader, onward = await asyncio.open_connection(*target, ssl=dialling)
        writers.extend((writer, onward))
        await asyncio.gather(pump(reader, onward, seen[0]), pump(onward_reader, writer, seen[1]))

    listening = between.listening() if between else None
    async with await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=listening) as server:
        cluster.addresses[node_id] = server.sockets[0].getsockname()
        yield
        for writer in writers:
            writer.transport.abort()


async def refused(node: NodePeers, reason: str) -> None:
    with pytest.raises(PeerUnreachable, match=reason):
        await node.call(2, changed(1), 0)


def told(capsys: pytest.CaptureFixture[str], event: str) -> list[dict[str, Any]]:
    """Return the lines of the log about an event."""
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    return [line for line in lines if line["event"] == event]


@on_uvloop
async def test_what_is_on_the_wire_is_tls_and_nothing_else(cluster: Cluster) -> None:
    one = await cluster.start(1, tls=node_tls())
    await cluster.start(2, tls=node_tls())
    wire = (bytearray(), bytearray())
    async with relayed(cluster, 2, wire):
        for version in range(3):
            await one.call(2, changed(version), 0)
    assert cluster.told == {2: [0, 1, 2]}
    for seen in wire:
        # Whole records, by their sizes.
        start = 0
        while start < len(seen):
            assert seen[start] in (20, 21, 22, 23) and seen[start + 1] == 3
            start += 5 + int.from_bytes(seen[start + 3 : start + 5], "big")
        assert start == len(seen) and b"cluster" not in seen and b"peer" not in seen


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        (node_tls(pair(STRANGERS), STRANGERS), "self-signed certificate in certificate chain"),
        (node_tls(pair(host="b.example"), host="b.example"), "IP address mismatch"),
    ],
    ids=["of an unknown authority", "of another host"],
)
@on_uvloop
async def test_a_node_whose_certificate_is_not_believed_is_named_once_and_left_in_peace(
    cluster: Cluster, listener: PeerTls, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = await cluster.start(1, tls=node_tls())
    await cluster.start(2, tls=listener)
    for _ in range(3):
        await refused(one, f"its certificate, at 127.0.0.1:[0-9]+, is not trusted: {said}")
    assert one._count == 1, "it is not dialled again at once"
    (line,) = told(capsys, "node cannot be reached")
    assert line["node_id"] == 2 and said in line["reason"]


@on_uvloop
async def test_a_certificate_that_has_expired_is_refused_by_both_sides(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        # As one that has expired since the node's start.
        patched.setattr(tls, "_tried", lambda *_: b"certificate")
        late = node_tls(pair(has_expired=True))
    await cluster.start(2, tls=late)
    await refused(await cluster.start(1, tls=node_tls()), "certificate has expired")
    dialler = await cluster.start(3, tls=late)
    with pytest.raises(PeerUnreachable, match="it ended the connection"):
        await dialler.call(1, changed(1), 0)
    (line,) = [line for line in told(capsys, "handshake failed") if "its cert" in line["reason"]]
    assert line["reason"] == "its certificate is not trusted: certificate has expired"
    assert line["peer_address"].startswith("127.0.0.1:")


@on_uvloop
async def test_a_host_that_is_not_to_be_checked_may_have_any_name(cluster: Cluster) -> None:
    one = await cluster.start(1, tls=node_tls(other=CHECKS_NO_HOST))
    await cluster.start(2, tls=node_tls(pair(host="b.example"), host="b.example"))
    await one.call(2, changed(1), 0)
    assert cluster.told == {2: [1]}


@pytest.mark.parametrize("stranger", [None, pair(STRANGERS)], ids=["none", "a stranger's"])
@on_uvloop
async def test_who_shows_no_certificate_of_a_node_is_not_let_in(
    cluster: Cluster, stranger: KeyPair | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.start(2, tls=node_tls())
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    if stranger is not None:
        context.load_cert_chain(stranger.write_pem(tmp_path / "stranger.pem"))
    reader, writer = await asyncio.open_connection(*cluster.addresses[2], ssl=context)
    with suppress(OSError):
        assert await reader.read() == b""
    writer.transport.abort()
    assert len(told(capsys, "handshake failed")) == 1


@on_uvloop
async def test_plain_text_to_a_node_with_tls_is_refused_and_both_sides_say_so(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    one = await cluster.start(1)
    await cluster.start(2, tls=node_tls())
    for _ in range(3):
        await refused(one, "it speaks TLS, and this node does not")
    said = capsys.readouterr().err
    assert said.count("node cannot be reached") == 1
    assert said.count("handshake failed") == 1 and "not TLS" in said


@on_uvloop
async def test_tls_to_a_node_in_plain_text_is_refused_and_both_sides_say_so(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    one = await cluster.start(1, tls=node_tls())
    await cluster.start(2)
    for _ in range(3):
        await refused(one, "it speaks plain text; security.inter.broker.protocol")
    said = capsys.readouterr().err
    assert said.count("node cannot be reached") == 1
    assert said.count("connection of a peer closed") == 1
    assert "it speaks TLS, and this node does not" in said and '"127.0.0.1:' in said


@on_uvloop
async def test_a_peer_that_is_mended_is_dialled_again_after_a_moment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_peers, "REFUSED_PAUSE_S", 0.0)
    one = await cluster.start(1, tls=node_tls())
    wrong = await cluster.start(2)
    await refused(one, "plain text")
    await refused(one, "plain text")
    wrong.close()
    await cluster.start(2, tls=node_tls())
    await one.call(2, changed(1), 0)
    said = capsys.readouterr().err
    assert said.count("node cannot be reached") == 1
    assert "node lets this one in again" in said


@on_uvloop
async def test_what_stands_between_two_nodes_with_a_good_certificate_cannot_pass_proofs_on(
    cluster: Cluster,
) -> None:
    """As an insider could who has a certificate of the same authority, where names are not
    checked."""
    one = await cluster.start(1, tls=node_tls(other=CHECKS_NO_HOST))
    await cluster.start(2, tls=node_tls())
    seen = (bytearray(), bytearray())
    async with relayed(cluster, 2, seen, between=node_tls(pair())):
        await refused(one, "has not proven that it is of this cluster")
    assert b"cluster" in seen[0], "the insider read what was said"
    assert not cluster.told


@on_uvloop
async def test_a_renewed_certificate_and_truststore_hold_for_the_next_connection(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = {"keystore": tmp_path / "node.pem", "truststore": tmp_path / "trusted.pem"}

    def write(own: KeyPair, trusted: str, mtime_s: int) -> None:
        own.write_pem(stores["keystore"])
        stores["truststore"].write_text(trusted)
        for path in stores.values():
            os.utime(path, (mtime_s, mtime_s))

    write(NODE, AUTHORITY.certificate_pem, 1)
    given = {f"ssl.{name}.location": str(path) for name, path in stores.items()}
    pem = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
    settings = SecurityConfig({**given, **pem})
    renewed = PeerTls(lambda: settings, "127.0.0.1")
    await cluster.start(2, tls=renewed)
    old, new = await cluster.start(1, tls=node_tls()), pair(STRANGERS)
    await old.call(2, changed(1), 0)
    both = AUTHORITY.certificate_pem + STRANGERS.certificate_pem
    # First a mistake: a certificate that the truststore does not know stays out.
    write(new, AUTHORITY.certificate_pem, 2)
    renewed.reload()
    write(new, both, 3)
    renewed.reload()
    await old.call(2, changed(2), 0)
    await refused(await cluster.start(3, tls=node_tls()), "is not trusted")
    other = await cluster.start(4, tls=node_tls(pair(STRANGERS), STRANGERS))
    await other.call(2, changed(3), 0)
    assert cluster.told == {2: [1, 2, 3]}, "open connections live on"
    said = capsys.readouterr().err
    assert said.count("certificate not renewed") == 1 and said.count("certificate renewed") == 1


def test_settings_that_cannot_be_used_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    settings = tls_settings(NODE, AUTHORITY, {})
    renewed = PeerTls(lambda: settings, "127.0.0.1")
    settings = tls_settings(pair(STRANGERS), AUTHORITY, {})
    for _ in range(3):
        renewed.reload()
    assert len(told(capsys, "certificate not renewed")) == 1
    settings = tls_settings(pair(), AUTHORITY, {})
    renewed.reload()
    assert len(told(capsys, "certificate renewed")) == 1


@pytest.mark.parametrize(
    ("own", "host", "other", "said"),
    [
        (pair(has_expired=True), "127.0.0.1", {}, "certificate has expired"),
        (pair(STRANGERS), "127.0.0.1", {}, "unable to get local issuer certificate"),
        (NODE, "b.example", {}, "as that of b.example: Hostname mismatch"),
        (NODE, "127.0.0.1", {"ssl.truststore.certificates": None}, "need ssl.truststore.location"),
        (NODE, "127.0.0.1", {"ssl.keystore.key": None}, "ssl.keystore.location is missing"),
        (
            NODE,
            "127.0.0.1",
            {"ssl.endpoint.identification.algorithm": "ldaps"},
            "neither https nor empty",
        ),
    ],
)
def test_a_node_that_its_peers_would_not_believe_does_not_start(
    own: KeyPair, host: str, other: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        node_tls(own, host=host, other=other)
