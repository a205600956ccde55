"""A pooler that changes the session of a connection at each transaction, as PgBouncer does with
`pool_mode = transaction`: a cluster refuses it, and `magnetar cluster doctor` names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from struct import Struct
from typing import TypeAlias
from urllib.parse import urlsplit

import pytest

from magnetar.cli.clustered import joined
from magnetar.config.load import Given, load
from magnetar.storage.catalog import Catalog
from magnetar.storage.cluster_checks import Verdict, check
from magnetar.storage.database import CatalogFailure
from magnetar.storage.postgres_database import PostgresDatabase

_Session: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_HEAD = Struct(">ci")
_SIZE = Struct(">i")
_SSL_REQUEST = _SIZE.pack(80_877_103)


async def _startup(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(_SIZE.size)
    return head + await reader.readexactly(_SIZE.unpack(head)[0] - _SIZE.size)


async def _messages(reader: asyncio.StreamReader, *last: bytes) -> bytes:
    """Return the next messages up to the first of one of these kinds."""
    messages = b""
    while True:
        head = await reader.readexactly(_HEAD.size)
        kind, size = _HEAD.unpack(head)
        messages += head + await reader.readexactly(size - _SIZE.size)
        if kind in last:
            return messages


async def _asked(session: _Session, request: bytes) -> bytes:
    session[1].write(request)
    return await _messages(session[0], b"Z")


class _Pooler:
    def __init__(self, url: str, *, in_turn: bool) -> None:
        """`in_turn`: take the sessions in turn; else take the one that was used last."""
        self._address = urlsplit(url)
        self._in_turn = in_turn
        #: What each client is told at its login.
        self._welcome = b""
        #: The sessions that are in no transaction.
        self._free: list[_Session] = []

    async def start(self) -> asyncio.Server:
        database = self._address.path.removeprefix("/").encode()
        startup = _SIZE.pack(3 << 16) + b"user\0postgres\0database\0" + database + b"\0\0"
        for _ in range(2):
            session = await asyncio.open_connection("127.0.0.1", self._address.port)
            self._welcome = await _asked(session, _SIZE.pack(4 + len(startup)) + startup)
            self._free.append(session)
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    def end(self) -> None:
        for _, requests in self._free:
            requests.close()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        with closing(answers), suppress(asyncio.IncompleteReadError):
            if (await _startup(client)).endswith(_SSL_REQUEST):
                answers.write(b"N")
                await _startup(client)
            answers.write(self._welcome)
            while (request := await _messages(client, b"Q", b"S", b"X"))[:1] != b"X":
                session = self._free.pop(0 if self._in_turn else -1)
                while not (answer := await _asked(session, request)).endswith(b"I"):
                    answers.write(answer)
                    request = await _messages(client, b"Q", b"S")
                answers.write(answer)
                self._free.append(session)


@asynccontextmanager
async def pooled(url: str, *, in_turn: bool) -> AsyncIterator[str]:
    """Yield the URL of a pooler of a database."""
    pooler = _Pooler(url, in_turn=in_turn)
    async with await pooler.start() as server:
        port = server.sockets[0].getsockname()[1]
        try:
            yield url.replace(f":{urlsplit(url).port}/", f":{port}/")
        finally:
            server.close()
            pooler.end()


@pytest.mark.parametrize("in_turn", [False, True])
async def test_a_pooler_of_transactions_is_refused(postgres_url: str, in_turn: bool) -> None:
    def open_catalog(url: str) -> None:
        Catalog(None, is_shared=True, database=PostgresDatabase(url)).close()

    async with pooled(postgres_url, in_turn=in_turn) as url:
        with pytest.raises(CatalogFailure, match="pool_mode = session"):
            await asyncio.to_thread(open_catalog, url)
        (told,) = [
            finding
            for finding in await asyncio.to_thread(lambda: [*check(url)])
            if "pooler" in finding.what
        ]
        assert told.verdict is Verdict.BAD
    await asyncio.to_thread(open_catalog, postgres_url)


async def test_a_pooler_of_transactions_is_refused_by_a_node_that_starts(
    postgres_url: str, tmp_path: Path
) -> None:
    Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url)).close()
    async with pooled(postgres_url, in_turn=False) as url:
        values = {"cluster.storage": url, "log.dirs": str(tmp_path)}
        config = load([Given(name, value, "test") for name, value in values.items()]).config
        with pytest.raises(CatalogFailure, match="pool_mode = session"):
            await asyncio.to_thread(joined(config, 1).__enter__)
