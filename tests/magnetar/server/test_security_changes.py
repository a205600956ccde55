"""Certificates and limits of listeners that change while the broker serves."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from magnetar.broker import Broker
from magnetar.testing.certificates import COMMON_NAME, KeyPair, make, named
from tests.magnetar.conftest import RawClient
from wire.error_code import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[RawClient]]
SecureConnect = Callable[[Broker], Awaitable[tuple[RawClient, bytes]]]
AUTHORITY = make(named((COMMON_NAME, "authority")))
OWN, EVERY = "1", ""
PER_ADDRESS = "max.connections.per.ip"
LOCATION = "listener.name.secure.ssl.keystore.location"


def certificate() -> KeyPair:
    return make(named((COMMON_NAME, "server")), AUTHORITY)


def settings(directory: Path, pair: KeyPair) -> dict[str, str]:
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pair.write_pem(directory / "first.pem")),
        "durability": "fsync",
    }


@pytest.fixture
async def secure() -> AsyncIterator[SecureConnect]:
    """Connect by TLS: a client, and the certificate that it was shown."""
    opened: list[RawClient] = []

    async def connect(broker: Broker) -> tuple[RawClient, bytes]:
        context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
        listener = broker.listeners[1]
        reader, writer = await asyncio.open_connection("localhost", listener.port, ssl=context)
        opened.append(RawClient(reader, writer))
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return opened[-1], shown

    yield connect
    for client in opened:
        client.close()


def der(pair: KeyPair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate_pem)


async def alter(client: RawClient, name: str, changes: dict[str, str]) -> ErrorCode:
    resource = AlterConfigsResource(
        resource_type=4,
        resource_name=name,
        configs=[
            AlterableConfig(name=each, config_operation=0, value=value)
            for each, value in changes.items()
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = await client.ask(request, 1, IncrementalAlterConfigsResponse)
    return ErrorCode(answer.responses[0].error_code)


async def is_served(client: RawClient) -> bool:
    answer = await client.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    return answer.error_code == 0


async def test_new_connections_get_the_new_certificate_and_open_ones_live_on(
    start_broker: StartBroker, connect: Connect, secure: SecureConnect, tmp_path: Path
) -> None:
    first, second = certificate(), certificate()
    broker = await start_broker(settings(tmp_path, first))
    client = await connect(broker)
    before, shown = await secure(broker)
    assert shown == der(first)
    changed = {LOCATION: str(second.write_pem(tmp_path / "second.pem"))}
    assert await alter(client, OWN, changed) is ErrorCode.NONE
    _, shown = await secure(broker)
    assert shown == der(second)
    assert await is_served(before)
    await broker.stop()
    # Bound by its file of settings, it has what was stored before it serves.
    again = await start_broker(settings(tmp_path, first))
    assert (await secure(again))[1] == der(second)


async def test_a_bad_certificate_is_refused_and_the_old_one_kept(
    start_broker: StartBroker, connect: Connect, secure: SecureConnect, tmp_path: Path
) -> None:
    pair = certificate()
    broker = await start_broker(settings(tmp_path, pair))
    client = await connect(broker)
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    for name, changes in (
        (OWN, {LOCATION: str(rubbish)}),
        (OWN, {LOCATION: str(tmp_path / "missing.pem")}),
        # A setting of one listener, for one broker, which the listener can change while it serves.
        (OWN, {"ssl.keystore.location": str(rubbish)}),
        (EVERY, {LOCATION: str(tmp_path / "first.pem")}),
        (OWN, {"listener.name.secure.ssl.client.auth": "required"}),
    ):
        assert await alter(client, name, changes) is ErrorCode.INVALID_REQUEST, changes
    assert (await secure(broker))[1] == der(pair)


async def test_a_listeners_limit_of_connections_changes_at_run_time(
    start_broker: StartBroker, connect: Connect, secure: SecureConnect, tmp_path: Path
) -> None:
    broker = await start_broker(settings(tmp_path, certificate()))
    client = await connect(broker)
    await secure(broker)
    limit = {"listener.name.secure.max.connections": "1"}
    assert await alter(client, EVERY, limit) is ErrorCode.NONE
    with pytest.raises(OSError):
        await secure(broker)
    limit = {"listener.name.secure.max.connections": "3"}
    assert await alter(client, EVERY, limit) is ErrorCode.NONE
    assert await is_served((await secure(broker))[0])
    # With none no client could ever change that again.
    for name in ("listener.name.secure.max.connections", "max.connections", PER_ADDRESS):
        assert await alter(client, EVERY, {name: "0"}) is ErrorCode.INVALID_REQUEST
    named = {PER_ADDRESS: "0", f"{PER_ADDRESS}.overrides": "127.0.0.1:100"}
    assert await alter(client, EVERY, named) is ErrorCode.NONE
    assert await is_served((await secure(broker))[0])
    # The client that asks for this could not take it back.
    for overrides in ("127.0.0.1:0", "10.1.2.3:5, 127.0.0.1:-1", "10.1.2.3:5"):
        named = {PER_ADDRESS: "0", f"{PER_ADDRESS}.overrides": overrides}
        assert await alter(client, EVERY, named) is ErrorCode.INVALID_REQUEST
    named = {PER_ADDRESS: "100", f"{PER_ADDRESS}.overrides": "10.1.2.3:0"}
    assert await alter(client, EVERY, named) is ErrorCode.NONE
    named = {PER_ADDRESS: "100", f"{PER_ADDRESS}.overrides": ""}
    assert await alter(client, EVERY, named) is ErrorCode.NONE
    # The whole broker's, and an address'.
    for name in ("max.connections", PER_ADDRESS):
        assert await alter(client, EVERY, {name: "1"}) is ErrorCode.NONE
        refused = await connect(broker)
        assert await refused.is_closed()
        assert await alter(client, EVERY, {name: "100"}) is ErrorCode.NONE
