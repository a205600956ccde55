"""A server that turns its clients away answers none of them, and takes them in again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.broker import Broker
from magnetar.security.handshakes import Outcome
from tests.magnetar.conftest import RawClient
from tests.magnetar.server.test_handshakes import (
    Open,
    StartBroker,
    is_served,
    open_tls,
    pem,
    start_secure,
)

__all__ = ["open_tls", "pem", "start_secure"]

Connect = Callable[[Broker], Awaitable[RawClient]]


async def test_clients_are_closed_and_new_ones_too_until_they_are_served_again(
    broker: Broker, connect: Connect
) -> None:
    before = await connect(broker)
    assert await is_served(before)
    broker.server.turn_away()
    assert await before.is_closed()
    assert await (await connect(broker)).is_closed()
    async with asyncio.timeout(10):
        while broker.server.connection_count:
            await asyncio.sleep(0)
    broker.server.serve_again()
    assert await is_served(await connect(broker))


async def test_one_that_is_turned_away_costs_no_handshake(
    start_secure: StartBroker, open_tls: Open
) -> None:
    broker = await start_secure()
    assert await is_served(await open_tls(broker))
    broker.server.turn_away()
    assert await (await open_tls(broker, encrypted=False)).is_closed()
    (of_listener,) = broker.server.handshakes
    assert of_listener.outcomes == {Outcome.DONE: 1}
    broker.server.serve_again()
    assert await is_served(await open_tls(broker))


async def test_a_handshake_under_way_ends_in_no_service(
    start_secure: StartBroker, open_tls: Open
) -> None:
    broker = await start_secure()
    opening = asyncio.ensure_future(open_tls(broker))
    (of_listener,) = broker.server.handshakes
    async with asyncio.timeout(10):
        while not of_listener.count:
            await asyncio.sleep(0)
    broker.server.turn_away()
    try:
        client = await opening
    except OSError:
        # The end came before the client had finished its part.
        assert not broker.server.connection_count
        return
    assert await client.is_closed()
