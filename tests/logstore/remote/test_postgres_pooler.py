"""A node whose way to the database leads through a pooler of sessions, as PgBouncer is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from struct import Struct
from urllib.parse import urlsplit
from uuid import UUID

from logstore.remote.commit_store import Changes, Chunk, Commit, LogKey
from tests.logstore.remote.stored_nodes import connected, make_tables, start_node
from tests.postgresql import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

KEY = LogKey(UUID(int=1), 0)
#: The parameters of a startup packet that PgBouncer passes on or tracks; all others it refuses.
_TAKEN = {"user", "database", "client_encoding", "application_name"}
_HEAD = Struct(">ii")
_SSL_REQUEST = 80_877_103


@asynccontextmanager
async def pooled(url: str) -> AsyncIterator[str]:
    """Yield the URL of a proxy that reads the packet in which a client asks for a session."""
    port = urlsplit(url).port
    sessions: set[asyncio.Task[None]] = set()

    async def carry(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        size, code = _HEAD.unpack(await client.readexactly(_HEAD.size))
        if code == _SSL_REQUEST:
            answers.write(b"N")
            size, code = _HEAD.unpack(await client.readexactly(_HEAD.size))
        asked = await client.readexactly(size - _HEAD.size)
        refused = {*asked.rstrip(b"\0").decode().split("\0")[::2]} - _TAKEN
        if refused:
            said = f"SFATAL\0C08P01\0Munsupported startup parameter: {refused}\0\0".encode()
            answers.write(b"E" + Struct(">i").pack(len(said) + 4) + said)
            await _closed(answers)
            return
        server, requests = await asyncio.open_connection("127.0.0.1", port)
        requests.write(_HEAD.pack(size, code) + asked)
        await asyncio.gather(_pump(client, requests), _pump(server, answers))

    def begin(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        sessions.add(asyncio.create_task(carry(client, answers)))

    proxy = await asyncio.start_server(begin, "127.0.0.1", 0)
    own_port = proxy.sockets[0].getsockname()[1]
    try:
        yield url.replace(f":{port}/", f":{own_port}/")
    finally:
        proxy.close()
        await asyncio.gather(*sessions, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Carry bytes until one side ends, and end the other."""
    with suppress(ConnectionError):
        while data := await source.read(65_536):
            target.write(data)
    await _closed(target)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_commits_and_reads_pass_a_pooler_of_sessions(postgres_url: str) -> None:
    await make_tables(postgres_url)
    await start_node(postgres_url, 1, 7)
    async with pooled(postgres_url) as url:
        store = await connected(url, 7)
        await store.commit(Commit(1, 0, Changes([Chunk(KEY, 0, 3, b"batches")])))
        await store.prove(1)
        # Each connection of the pool more than once: nothing that was set is lost in between.
        for _ in range(3):
            (found,) = await store.read(KEY, 0, 100, 3)
            assert found.data == b"batches"
        await store.close()
