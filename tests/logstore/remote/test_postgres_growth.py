"""What one call costs in a PostgreSQL that holds much."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from logstore.remote.commit_store import (
    AttachmentChange,
    Changes,
    Chunk,
    Commit,
    LogKey,
    LogStart,
    Span,
    Wanted,
)
from logstore.remote.postgres_store import PostgresStore
from logstore.remote.references import Reference
from tests.logstore.remote.stored_nodes import connected, make_tables, start_node
from tests.postgresql import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

KEY = LogKey(UUID(int=1), 0)
#: Of another log.
ROWS = 20_000


async def _store_of(url: str) -> PostgresStore:
    await make_tables(url)
    await start_node(url, 1, 1)
    return await connected(url)


async def _commit(store: PostgresStore, number: int, changes: Changes | None = None) -> None:
    chunk = Chunk(KEY, number, number + 1, b"x" * 100)
    await store.commit(Commit(number, number - 1, changes or Changes([chunk])))


async def _counted(store: PostgresStore, admin: asyncpg.Connection, count: str) -> int:
    """Return a count of the server's, with all that the store's connections have added to it."""
    assert store._connection is not None
    await store._connection.execute("SELECT pg_stat_force_next_flush()")
    async with store._lend() as reader:
        await reader.execute("SELECT pg_stat_force_next_flush()")
    return int(await admin.fetchval(count))


async def test_a_removal_goes_through_nothing_that_was_removed_before(postgres_url: str) -> None:
    store = await _store_of(postgres_url)
    admin, dump = [await asyncpg.connect(postgres_url) for _ in range(2)]
    await admin.execute(
        "INSERT INTO magnetar.chunks SELECT $1, 0, n, n + 1, 'data' FROM generate_series(0, 999) n",
        KEY.topic_id,
    )
    # While anything is as old as a dump, what is removed stays in the index.
    await dump.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await dump.execute("SELECT FROM magnetar.nodes")
    read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'chunks_pkey'"
    before = await _counted(store, admin, read)
    for number in range(1, 11):
        end = 100 * number
        start = LogStart(KEY, end, end, stored_from=end - 100)
        await store.commit(Commit(number, number - 1, Changes(starts=[start])))
    assert await admin.fetchval("SELECT count(*) FROM magnetar.chunks") == 0
    assert await _counted(store, admin, read) - before <= 1_100
    await store.close()
    for connection in (admin, dump):
        await connection.close()


async def test_a_sweep_reads_no_batches(postgres_url: str) -> None:
    store = await _store_of(postgres_url)
    admin = await asyncpg.connect(postgres_url)
    named = Reference("k" * 200, 0, 1).encode()
    data = [*(bytes([n]) * 30_000 for n in range(20)), b"\0" * 100, b"\0" * 1_500, named]
    chunks = [Chunk(KEY, n, n + 1, each) for n, each in enumerate(data)]
    await store.commit(Commit(1, 0, Changes(chunks)))
    read = (
        "SELECT toast_blks_read + toast_blks_hit FROM pg_statio_user_tables"
        " WHERE relname = 'chunks'"
    )
    before = await _counted(store, admin, read)
    assert [one async for some in store.references([Span(KEY, 0, 99)]) for one in some] == [named]
    assert await _counted(store, admin, read) == before
    await store.close()
    await admin.close()


async def test_a_call_reads_no_rows_of_other_logs(postgres_url: str) -> None:
    store = await _store_of(postgres_url)
    admin = await asyncpg.connect(postgres_url)
    await admin.execute(
        "INSERT INTO magnetar.chunks SELECT $1::uuid, 0, n, n + 1, 'data'"
        " FROM generate_series(1, $2) n",
        UUID(int=2),
        ROWS,
    )
    # So the planner expects that many rows of any log.
    await admin.execute("ANALYZE magnetar.chunks")
    keys = [LogKey(UUID(int=1), partition) for partition in range(16)]
    for number in range(1, 11):
        await _commit(
            store,
            number,
            Changes(
                [Chunk(key, number, number + 1, b"x" * 100) for key in keys],
                starts=[LogStart(key, number, number) for key in keys],
                attachments=[AttachmentChange(KEY, "name", b"data")],
            ),
        )
        for stored in await store.load([Wanted(key, None) for key in keys]):
            assert [chunk.base_offset for chunk in stored.chunks] == [number]
        assert len(await store.read(KEY, number, 1_000, number + 1)) == 1
    read = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'chunks'"
    assert await _counted(store, admin, read) == 0
    await store.close()
    await admin.close()
