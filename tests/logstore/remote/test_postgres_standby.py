"""Commits to a real PostgreSQL that waits for a synchronous standby, which may be away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from logstore.remote import postgres_readers, postgres_store
from logstore.remote import postgres_statements as sql
from logstore.remote.commit_store import (
    PROOFS_MAX,
    Changes,
    Chunk,
    Commit,
    LogKey,
    OutcomeUnknown,
    StoreUnavailable,
)
from logstore.remote.postgres_store import PostgresStore
from tests.logstore.remote.test_postgres_mishaps import store_over
from tests.postgresql import postgres_server, postgres_url, until_commits_wait

__all__ = ["postgres_server", "postgres_url"]

AWAIT_STANDBYS = "ALTER SYSTEM SET synchronous_standby_names = '*'"
AWAIT_NONE = "ALTER SYSTEM RESET synchronous_standby_names"
WAITING = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
KEY = LogKey(UUID(int=1), 0)


async def test_with_a_standby_commits_do_not_wait_and_proofs_do(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "HAS_STANDBY", "SELECT true")
    store = await store_over(postgres_url)
    await store.commit(Commit(1, 0))
    connection = store._connection
    assert connection is not None
    assert (store.proven, await connection.fetchval("SHOW synchronous_commit")) == (0, "off")
    await asyncio.gather(*(store.prove(1) for _ in range(PROOFS_MAX)))
    assert store.proven == 1
    settings = [await one.fetchval("SHOW synchronous_commit") for one, _, _ in store._provers._idle]
    assert settings == ["on"] * PROOFS_MAX
    # What is not on the disk was not waited for on a standby either.
    for number in range(2, 12):
        await store.commit(Commit(number, number - 1))
        written = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
        await store.prove(number)
        assert await connection.fetchval("SELECT pg_current_wal_flush_lsn() >= $1", written)
    await store.close()


@pytest.fixture
async def before_standby(
    postgres_url: str,
) -> AsyncIterator[tuple[PostgresStore, asyncpg.Connection]]:
    """A store that has connected, with an administrator, before the server awaits a standby, which
    is away; and that with a default which hides warnings."""
    admin = await asyncpg.connect(postgres_url)
    store = await store_over(postgres_url, "client_min_messages = error")
    await store.commit(Commit(1, 0, Changes([Chunk(KEY, 0, 1, b"x")])))
    await admin.execute(AWAIT_STANDBYS)
    try:
        await _reload(admin, "*")
        await until_commits_wait(postgres_url)
        yield store, admin
    finally:
        await admin.execute(AWAIT_NONE)
        await _reload(admin, "")
    await admin.close()
    await store.close()


async def _reload(admin: asyncpg.Connection, names: str) -> None:
    await admin.execute("SELECT pg_reload_conf()")
    async with asyncio.timeout(30):
        while await admin.fetchval("SHOW synchronous_standby_names") != names:
            await asyncio.sleep(0.01)


@pytest.fixture
async def waiting(
    before_standby: tuple[PostgresStore, asyncpg.Connection],
) -> tuple[PostgresStore, asyncpg.Connection]:
    """The same, where the store's commit 2 waits for the standby."""
    store, _ = before_standby
    await store.connect()
    await store.commit(Commit(2, 1))
    return before_standby


async def _until_waiting(admin: asyncpg.Connection, count: int) -> None:
    async with asyncio.timeout(30):
        while await admin.fetchval(f"SELECT count(*) {WAITING}") != count:
            await asyncio.sleep(0.01)


async def test_what_was_committed_while_the_standby_was_away_is_proven_once_it_is_not_awaited(
    waiting: tuple[PostgresStore, asyncpg.Connection],
) -> None:
    store, admin = waiting
    proof = asyncio.ensure_future(store.prove(2))
    await _until_waiting(admin, 1)
    assert store.proven == 1
    await admin.execute(AWAIT_NONE)
    await _reload(admin, "")
    await proof
    assert store.proven == 2


async def test_proofs_without_an_answer_keep_no_process_of_the_server(
    waiting: tuple[PostgresStore, asyncpg.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "_COMMIT_S", 0.5)
    store, admin = waiting
    for _ in range(3):
        proofs = [asyncio.ensure_future(store.prove(2)) for _ in range(PROOFS_MAX)]
        await _until_waiting(admin, PROOFS_MAX)
        for proof in proofs:
            with pytest.raises(OutcomeUnknown):
                await proof
        await _until_waiting(admin, 0)
    assert store.proven == 1


async def test_a_node_that_stops_keeps_no_process_of_the_server(
    waiting: tuple[PostgresStore, asyncpg.Connection],
) -> None:
    store, admin = waiting
    work = [store.prove(2) for _ in range(PROOFS_MAX)]
    tasks = [asyncio.ensure_future(each) for each in (*work, store.delete([KEY]))]
    await _until_waiting(admin, len(tasks))
    for task in tasks:
        task.cancel()
    await store.close()
    await _until_waiting(admin, 0)


async def test_a_proof_that_somebody_cancels_proves_nothing(
    waiting: tuple[PostgresStore, asyncpg.Connection],
) -> None:
    store, admin = waiting
    await _cancelled(store.prove(2), admin)
    assert store.proven == 1


async def test_a_commit_whose_wait_somebody_cancels_is_not_proven(
    before_standby: tuple[PostgresStore, asyncpg.Connection],
) -> None:
    store, admin = before_standby
    await _cancelled(store.commit(Commit(2, 1)), admin)
    assert store.proven == 1
    await store.connect()
    assert await store.last_commit() == 2


async def _cancelled(work: Awaitable[Any], admin: asyncpg.Connection) -> None:
    """Cancel the wait of `work` for the standby; expect that its outcome is unknown."""
    doing = asyncio.ensure_future(work)
    await _until_waiting(admin, 1)
    await admin.execute(f"SELECT pg_cancel_backend(pid) {WAITING}")
    with pytest.raises(OutcomeUnknown, match="synchronous replication"):
        await doing


async def test_a_commit_without_an_answer_keeps_no_process_of_the_server_nor_its_row(
    before_standby: tuple[PostgresStore, asyncpg.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "_COMMIT_S", 0.5)
    store, admin = before_standby
    with pytest.raises(OutcomeUnknown):
        await store.commit(Commit(2, 1))
    await _until_waiting(admin, 0)
    await store.connect()
    assert await store.last_commit() == 2
    await store.renew()


async def test_a_deletion_without_an_answer_keeps_no_process_of_the_server(
    before_standby: tuple[PostgresStore, asyncpg.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_readers, "_READ_S", 0.5)
    store, admin = before_standby
    with pytest.raises(StoreUnavailable):
        await store.delete([KEY])
    await _until_waiting(admin, 0)
