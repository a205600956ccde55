"""Handshakes of TLS: what counts, what fails and how, and who is served meanwhile."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from magnetar.broker import Broker
from magnetar.security import handshakes
from magnetar.security.handshakes import Outcome
from magnetar.testing.certificates import COMMON_NAME, KeyPair, make, named
from tests.magnetar.conftest import RawClient
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[RawClient]]
Open = Callable[..., Coroutine[Any, Any, RawClient]]
AUTHORITY = make(named((COMMON_NAME, "authority")))


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return make(named((COMMON_NAME, "server")), AUTHORITY).write_pem(tmp_path / "server.pem")


@pytest.fixture
async def start_secure(start_broker: StartBroker, pem: Path) -> Callable[..., Awaitable[Broker]]:
    """Start a broker that listens in plain text, and by TLS."""

    async def start(settings: dict[str, str] | None = None) -> Broker:
        return await start_broker(
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(pem),
                **(settings or {}),
            }
        )

    return start


@pytest.fixture
async def open_tls() -> AsyncIterator[Open]:
    """Open a connection to the TLS listener, encrypted or bare."""
    opened: list[RawClient] = []

    async def open_one(broker: Broker, *, encrypted: bool = True) -> RawClient:
        context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
        port = broker.listeners[1].port
        streams = await asyncio.open_connection(
            "localhost", port, ssl=context if encrypted else None
        )
        opened.append(RawClient(*streams))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


async def is_served(client: RawClient) -> bool:
    answer = await client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    return answer.error_code == 0


async def counted(broker: Broker, outcome: Outcome, count: int) -> None:
    (of_listener,) = broker.server.handshakes
    async with asyncio.timeout(10):
        while of_listener.outcomes[outcome] < count:
            await asyncio.sleep(0)


async def test_plain_text_on_a_tls_listener_is_told_and_closed(
    start_secure: StartBroker, open_tls: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = await start_secure()
    client = await open_tls(broker, encrypted=False)
    client.send(ApiVersionsRequest(), 0)
    # An alert, by which the client can tell that it has reached TLS.
    assert (await client.reader.read()).startswith(b"\x15\x03")
    await counted(broker, Outcome.PLAIN_TEXT, 1)
    lines = [line for line in capsys.readouterr().err.splitlines() if "handshake failed" in line]
    assert len(lines) == 1
    assert "PLAINTEXT" in lines[0] and "127.0.0.1" in lines[0]


async def test_half_a_handshake_ends_and_counts_meanwhile(
    start_secure: StartBroker,
    open_tls: Open,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.3)
    broker = await start_secure({"max.connections": "3"})
    silent, half = (
        await open_tls(broker, encrypted=False),
        await open_tls(broker, encrypted=False),
    )
    half.writer.write(b"\x16\x03\x01\x02\x00\x01")
    other = await connect(broker)
    assert await is_served(other)
    # Both count, though neither is encrypted.
    assert await (await connect(broker)).is_closed()
    assert await silent.is_closed() and await half.is_closed()
    await counted(broker, Outcome.TIMEOUT, 2)
    assert await is_served(await connect(broker))


async def test_a_socket_beyond_a_limit_costs_no_handshake(
    start_secure: StartBroker, open_tls: Open
) -> None:
    broker = await start_secure({"listener.name.ssl.max.connections": "1"})
    served = await open_tls(broker)
    assert await is_served(served)
    refused = await open_tls(broker, encrypted=False)
    assert await refused.is_closed()
    (of_listener,) = broker.server.handshakes
    assert of_listener.outcomes == {Outcome.DONE: 1}
    served.close()
    async with asyncio.timeout(10):
        while broker.server.connection_count:
            await asyncio.sleep(0)
    assert await is_served(await open_tls(broker))


async def test_a_client_that_believes_no_certificate_is_a_failed_handshake(
    start_secure: StartBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = await start_secure()
    with pytest.raises(ssl.SSLError):
        context = ssl.create_default_context()
        await asyncio.open_connection("localhost", broker.listeners[1].port, ssl=context)
    await counted(broker, Outcome.FAILED, 1)
    assert "handshake failed" in capsys.readouterr().err


async def test_many_handshakes_at_once_hold_up_nobody_else(
    start_secure: StartBroker, open_tls: Open, connect: Connect
) -> None:
    broker = await start_secure()
    (of_listener,) = broker.server.handshakes
    begun: list[int] = []
    began = of_listener._begin_next

    def counting() -> None:
        begun.append(0)
        began()

    of_listener._begin_next = counting  # type: ignore[method-assign]  # it counts the turns
    other = await connect(broker)
    opening = [asyncio.create_task(open_tls(broker)) for _ in range(30)]
    turns_between = []
    while not all(task.done() for task in opening):
        before = len(begun)
        assert await is_served(other)
        turns_between.append(len(begun) - before)
    await counted(broker, Outcome.DONE, 30)
    assert of_listener.count == 0
    for task in opening:
        assert await is_served(task.result())
    # Each begins in a turn of its own, so the other client was answered between any few of them.
    assert len(begun) >= 30 and max(turns_between) < 30


async def test_a_stop_ends_handshakes(start_secure: StartBroker, open_tls: Open) -> None:
    broker = await start_secure()
    silent = await open_tls(broker, encrypted=False)
    (of_listener,) = broker.server.handshakes
    async with asyncio.timeout(10):
        while not of_listener.count:
            await asyncio.sleep(0)
    await broker.stop()
    assert await silent.is_closed()
    assert of_listener.count == 0


def of_version_2(pair: KeyPair) -> str:
    """Return the certificate as one of X.509's version 2, in PEM: OpenSSL believes those too."""
    certificate = pair.certificate
    signed = certificate.tbs_certificate_bytes
    changed = signed.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01", 1)
    signature = b""
    # A signature may be a byte longer or shorter than another one.
    while len(signature) != len(certificate.signature):
        signature = AUTHORITY.key.sign(changed, ec.ECDSA(hashes.SHA256()))
    der = certificate.public_bytes(Encoding.DER)
    der = der.replace(signed, changed).replace(certificate.signature, signature)
    return ssl.DER_cert_to_PEM_cert(der)


async def test_a_client_whose_certificate_cannot_be_read_is_counted_once(
    start_secure: StartBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(AUTHORITY.certificate_pem)
    broker = await start_secure(
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
            "ssl.client.auth": "required",
            "listener.name.ssl.max.connections": "2",
        }
    )
    client = make(named((COMMON_NAME, "ada")), AUTHORITY)
    good, odd = ssl.create_default_context(cadata=AUTHORITY.certificate_pem), tmp_path / "odd.pem"
    good.load_cert_chain(client.write_pem(tmp_path / "good.pem"))
    odd.write_text(client.key_pem + of_version_2(client))
    refused = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    refused.load_cert_chain(odd)
    port = broker.listeners[1].port
    for _ in range(2):
        streams = await asyncio.open_connection("localhost", port, ssl=refused)
        assert await RawClient(*streams).is_closed()
    # Had each been forgotten twice, there would be room for four.
    clients = [
        RawClient(*await asyncio.open_connection("localhost", port, ssl=good)) for _ in range(2)
    ]
    assert [await is_served(each) for each in clients] == [True, True]
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("localhost", port, ssl=good)
    for each in clients:
        each.close()
    lines = capsys.readouterr().err
    assert lines.count("its certificate: 1 is not a valid X509 version") == 2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(("shows", "reason"), [(False, "REQUIRED|HANDSHAKE"), (True, "UNKNOWN_CA")])
async def test_a_client_is_told_why_its_certificate_is_refused(
    start_secure: StartBroker,
    tmp_path: Path,
    version: ssl.TLSVersion,
    shows: bool,
    reason: str,
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(AUTHORITY.certificate_pem)
    store = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(trusted)}
    broker = await start_secure(store | {"ssl.client.auth": "required"})
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    context.minimum_version = context.maximum_version = version
    if shows:
        stranger = make(named((COMMON_NAME, "stranger")))
        context.load_cert_chain(stranger.write_pem(tmp_path / "stranger.pem"))
    # By version 1.3 the client has shaken hands before it is judged.
    with pytest.raises(ssl.SSLError, match=reason):
        port = broker.listeners[1].port
        reader, _ = await asyncio.open_connection("localhost", port, ssl=context)
        await reader.read()
