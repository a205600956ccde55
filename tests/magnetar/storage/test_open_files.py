"""The soft limit of open files is not the broker's, and clients cannot use all of it up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest

from magnetar.broker import Broker
from magnetar.storage import open_files
from tests.magnetar.conftest import RawClient, StartBroker
from wire.messages.metadata import MetadataRequest, MetadataResponse

_SCRIPT = """
import resource
from magnetar.storage.open_files import raise_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
assert raise_limit() == hard
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
assert raise_limit() == hard
"""


def test_as_many_files_as_the_hard_limit_allows_may_be_open() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True)


_SHARES = """
import resource
from magnetar.storage.open_files import connections_max
for limit, share in ((1024, 768), (128, 64), (32, 1)):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 1024))
    assert connections_max() == share, (limit, connections_max())
"""


def test_a_share_of_the_files_is_the_logs() -> None:
    subprocess.run([sys.executable, "-c", _SHARES], check=True)


async def test_a_flood_of_connections_leaves_the_logs_their_files(
    start_broker: StartBroker,
    connect: Callable[[Broker], Awaitable[RawClient]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_files, "connections_max", lambda: 2)
    broker = await start_broker()
    served = [await connect(broker) for _ in range(2)]
    assert await (await connect(broker)).is_closed()
    for client in served:
        await client.ask(MetadataRequest(), 9, MetadataResponse)
