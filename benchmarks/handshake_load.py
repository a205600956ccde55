"""A thousand clients of a listener with TLS that shake hands at the same time."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import uvloop

from benchmarks.isolation import Stage
from magnetar.testing.certificates import COMMON_NAME, make, named

HANDSHAKES = 1_000


def settings(directory: Path) -> dict[str, str]:
    """Return the settings of a broker with a certificate of its own."""
    pair = make(named((COMMON_NAME, "server")))
    path = pair.write_pem(directory / "server.pem")
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path)}


def handshakes(stage: Stage) -> None:
    """All clients are connected before the first hello is sent."""
    host, port = stage.broker.address("SSL").split(":")
    with stage.measured():
        uvloop.run(_at_once(host, int(port)))


async def _at_once(host: str, port: int) -> None:
    context = ssl.create_default_context()
    # It is the broker's work that is measured.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opened = await asyncio.gather(
        *(asyncio.open_connection(host, port, limit=1024) for _ in range(HANDSHAKES))
    )
    # A busy machine may be too slow for some: they end after ten seconds, as they should.
    await asyncio.gather(
        *(writer.start_tls(context) for _, writer in opened), return_exceptions=True
    )
    for _, writer in opened:
        writer.transport.abort()
