"""The host of PostgreSQL vanishes: its connections stay open, and nothing comes from them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import pytest

from logstore.remote import postgres_readers, postgres_store
from logstore.remote.commit_store import (
    Changes,
    Chunk,
    Commit,
    LogKey,
    NoRoom,
    OutcomeUnknown,
    StoreUnavailable,
    Wanted,
)
from logstore.remote.postgres_store import PostgresStore
from tests.logstore.remote.stored_nodes import connected, make_tables, start_node
from tests.postgresql import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

KEY = LogKey(UUID(int=1), 0)
CHUNKS = [Chunk(KEY, 0, 1, b"batches")]


class Way:
    """The way to a server, which may lead to another host from some moment on."""

    def __init__(self, url: str, pause_s: float = 0.0) -> None:
        """`pause_s`: after each 64 KiB, each way."""
        self._target = urlsplit(url)
        self._pause_s = pause_s
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def open(self) -> str:
        """Return the URL that leads through it."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        own = self._target.netloc.rpartition("@")[0]
        return self._target._replace(netloc=f"{own}@127.0.0.1:{port}").geturl()

    async def _connected(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        target = self._target
        server, forth = await asyncio.open_connection(target.hostname, target.port)
        self._writers += (forth, back)
        for reader, writer in ((client, forth), (server, back)):
            self._tasks.append(asyncio.ensure_future(_pass(reader, writer, self._pause_s)))

    def vanish(self) -> None:
        """Let nothing through that has come this way so far; who connects anew is served."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.vanish()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause_s: float) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(pause_s)
    writer.close()


@asynccontextmanager
async def store_on(way: Way, url: str) -> AsyncIterator[PostgresStore]:
    """Connect as node 1, commit a chunk, and read it."""
    await make_tables(url)
    await start_node(url, 1, 1)
    store = await connected(await way.open())
    await store.commit(Commit(1, 0, Changes(CHUNKS)))
    assert await store.read(KEY, 0, 100, 1) == CHUNKS
    try:
        yield store
    finally:
        await store.close()
        await way.close()


@pytest.mark.timeout(30)
async def test_reads_go_to_the_server_that_commits_go_to(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait for the one that has vanished would wait for half a minute."""
    monkeypatch.setattr(postgres_store, "_COMMIT_S", 0.3)
    way = Way(postgres_url)
    async with store_on(way, postgres_url) as store:
        way.vanish()
        reading = asyncio.ensure_future(store.read(KEY, 0, 100, 1))
        with pytest.raises(OutcomeUnknown):
            await store.commit(Commit(2, 1))
        async with asyncio.timeout(5):
            await store.connect()
            with pytest.raises(StoreUnavailable):
                await reading
            assert await store.read(KEY, 0, 100, 1) == CHUNKS


async def test_a_full_disk_is_told_apart_from_other_refusals(postgres_url: str) -> None:
    way = Way(postgres_url)
    async with store_on(way, postgres_url) as store:
        admin = await asyncpg.connect(postgres_url)
        await admin.execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'no space left' USING ERRCODE = 'disk_full'; END $$;"
            " CREATE TRIGGER full_disk BEFORE INSERT ON magnetar.chunks"
            " EXECUTE FUNCTION full_disk()"
        )
        await admin.close()
        with pytest.raises(NoRoom, match="no space left"):
            await store.commit(Commit(2, 1, Changes([CHUNKS[0]._replace(base_offset=1)])))


async def test_reads_go_on_while_commits_are_refused(postgres_url: str) -> None:
    """A full disk refuses commits alone."""
    way = Way(postgres_url)
    async with store_on(way, postgres_url) as store, store._lend() as reader:
        with pytest.raises(OutcomeUnknown, match="duplicate"):
            await store.commit(Commit(2, 1, Changes(CHUNKS)))
        assert await reader.fetchval("SELECT 1") == 1


@pytest.mark.timeout(30)
async def test_a_slow_commit_ends_no_read_that_the_server_is_at_work_on(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load of a take-over may be among them, which would begin anew each time."""
    monkeypatch.setattr(postgres_store, "_COMMIT_S", 0.3)
    way = Way(postgres_url)
    async with store_on(way, postgres_url) as store:
        admin = await asyncpg.connect(postgres_url)
        async with store._lend() as reader:
            slow = asyncio.ensure_future(reader.fetchval("SELECT 7 FROM pg_sleep(2)"))
            async with admin.transaction():
                await admin.execute("LOCK TABLE magnetar.chunks")
                with pytest.raises(OutcomeUnknown):
                    await store.commit(Commit(2, 1, Changes([CHUNKS[0]._replace(base_offset=1)])))
            await store.connect()
            assert await slow == 7
        await admin.close()


@pytest.mark.timeout(60)
async def test_a_load_that_takes_longer_than_a_read_may_ends_nevertheless(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_readers, "_READ_S", 2.0)
    # Some 6 MB in a second: a part takes a sixth of one, and may take twelve times as long.
    monkeypatch.setattr(postgres_store, "_LOADED_BYTES", 1 << 20)
    way = Way(postgres_url, pause_s=0.01)
    async with store_on(way, postgres_url) as store:
        here = await connected(postgres_url)
        large = [Chunk(KEY, n, n + 1, bytes(1 << 17)) for n in range(1, 200)]
        small = [Chunk(KEY, n, n + 1, bytes(100)) for n in range(200, 2_000)]
        await here.commit(Commit(2, 1, Changes(large + small)))
        (loaded,) = await store.load([Wanted(KEY, 0)])
        assert loaded.chunks == CHUNKS + large + small
        await here.close()


async def test_a_host_that_does_not_answer_keeps_no_node_from_the_one_that_serves(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has vanished refuses no connection, as one that is paused accepts them all."""
    monkeypatch.setattr(postgres_readers, "CONNECT_S", 1.0)
    await make_tables(postgres_url)
    await start_node(postgres_url, 1, 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = (silent.getsockname()[1], urlsplit(postgres_url).port)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        store = await connected(
            urlsplit(postgres_url)._replace(netloc=f"postgres@{hosts}").geturl()
            + "?target_session_attrs=read-write"
        )
        # From now on this one is asked first: no lease ends while each attempt waits.
        async with asyncio.timeout(0.9):
            await store.connect()
            await store.commit(Commit(1, 0, Changes(CHUNKS)))
            assert await store.read(KEY, 0, 100, 1) == CHUNKS
        await store.close()
