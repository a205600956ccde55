"""Commits to a real PostgreSQL whose connections are cut, by nodes that are taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from uuid import UUID

import asyncpg
import pytest

from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.remote import postgres_provers, postgres_readers, postgres_store
from logstore.remote import postgres_statements as sql
from logstore.remote.commit_store import (
    Changes,
    Chunk,
    Commit,
    LogKey,
    Move,
    OutcomeUnknown,
    Span,
    StoreUnavailable,
    Wanted,
)
from logstore.remote.postgres_store import PostgresStore
from logstore.remote.remote_directory import RemoteDirectory
from logstore.remote.store_commits import StoreCommits
from logstore.sync.group_commit import GroupCommit, LedgerClosed
from tests.logstore.partitions import batch_of
from tests.logstore.remote.stored_nodes import connected, make_tables, start_node
from tests.postgresql import postgres_server, postgres_url
from tools.postgresql import PostgresServer
from wire.records import iterate_records

__all__ = ["postgres_server", "postgres_url"]

CONFIG = LogConfig(segment_bytes=20_000, snapshot_interval_bytes=20_000)
PARTITIONS = 3
INCARNATIONS = 4


class _Node:
    """One incarnation, which appends to all its logs until it fails."""

    def __init__(self, url: str, incarnation: int) -> None:
        self.incarnation = incarnation
        self.acknowledged: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.unknown = 0
        store = PostgresStore(url)
        store.begin_as(1, incarnation)
        commits = StoreCommits(store, on_trouble=self._on_trouble)
        self._group_commit = GroupCommit(
            None, Durability.FSYNC, on_failure=lambda failure: None, medium=commits
        )
        self.directory = RemoteDirectory(
            store,
            store,
            commits,
            self._group_commit,
            steady_ms=lambda: 0,
            is_loaded_whole=lambda _: True,
        )
        self._store = store

    @property
    def count(self) -> int:
        """How many appends were acknowledged."""
        return sum(map(len, self.acknowledged))

    def _on_trouble(self, reason: str) -> None:
        self.unknown += 1

    async def open(self) -> list[PartitionLog]:
        logs = await self.directory.open_together(
            self.directory.opening("t", index, UUID(int=1), CONFIG, self.incarnation)
            for index in range(PARTITIONS)
        )
        return [log for log in logs if log is not None]

    async def write(self, log: PartitionLog) -> None:
        count = 0
        with suppress(StorageFailure, LedgerClosed):
            while True:
                count += 1
                value = b"%d-%d-%d" % (self.incarnation, log.partition, count)
                log.append(log.check(batch_of(value + bytes(300)), 1_000))
                await log.durable(log.log_end_offset)
                self.acknowledged[log.partition].append(value)

    async def end(self) -> None:
        self.directory.abandon()
        await self._store.close()


@pytest.mark.timeout(60)
async def test_nothing_acknowledged_is_lost(postgres_url: str) -> None:
    random = Random(7)
    await make_tables(postgres_url)
    admin = await asyncpg.connect(postgres_url)
    nodes: list[_Node] = []
    writers: list[asyncio.Task[None]] = []
    for incarnation in range(1, INCARNATIONS + 1):
        # The earlier one writes on, and is fenced.
        await start_node(postgres_url, 1, incarnation)
        node = _Node(postgres_url, incarnation)
        nodes.append(node)
        writers += [asyncio.create_task(node.write(log)) for log in await node.open()]
        for _ in range(6):
            before = node.count
            while node.count == before:
                await asyncio.sleep(random.uniform(0, 0.01))
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
    await start_node(postgres_url, 1, INCARNATIONS + 1)
    await asyncio.gather(*writers)
    last = _Node(postgres_url, INCARNATIONS + 1)
    for log in await last.open():
        stored = [
            bytes(record.value or b"").rstrip(b"\0")
            for _, batch in log.ledger.batches.iterate(0)
            for record in iterate_records(batch)
        ]
        acknowledged = [value for node in nodes for value in node.acknowledged[log.partition]]
        assert len({*stored}) == len(stored), "twice"
        assert [value for value in stored if value in {*acknowledged}] == acknowledged
        assert len(acknowledged) > INCARNATIONS
    assert sum(node.unknown for node in nodes) > INCARNATIONS
    for node in [*nodes, last]:
        await node.end()
    await admin.close()


async def _until_counted(
    store: PostgresStore, admin: asyncpg.Connection, parts: int = 1_000
) -> None:
    """Return when the server's own count tells of so many parts of 2 KB that were removed."""
    assert store._connection is not None
    # A server's process tells the others after some seconds without this.
    await store._connection.execute("SELECT pg_stat_force_next_flush()")
    counted = sql.REMOVED_PARTS.replace("'chunks'", "'magnetar.chunks'")
    async with asyncio.timeout(30):
        while await admin.fetchval(counted) < parts:
            await asyncio.sleep(0.1)


async def test_what_moved_away_leaves_room_for_what_comes(postgres_url: str) -> None:
    await make_tables(postgres_url)
    await start_node(postgres_url, 1, 1)
    admin = await asyncpg.connect(postgres_url)
    store = await connected(postgres_url)
    sizes: list[int] = []
    key, number = LogKey(UUID(int=1), 0), 0
    for _ in range(6):
        begin = number
        for _ in range(20):
            number += 1
            data = Chunk(key, number, number + 1, bytes(100_000))
            await store.commit(Commit(number, number - 1, Changes([data])))
        moves = [Move(key, begin, number + 1, [])]
        number += 1
        await store.commit(Commit(number, number - 1, Changes(moves=moves)))
        await _until_counted(store, admin)
        await store.reclaim(1_000_000)
        sizes.append(await admin.fetchval("SELECT pg_total_relation_size('magnetar.chunks')"))
    assert sizes[-1] <= 1.2 * sizes[0], sizes
    await store.close()
    await admin.close()


async def store_over(url: str, *settings: str) -> PostgresStore:
    """Connect as node 1 to a database that has these settings by default."""
    await make_tables(url)
    await start_node(url, 1, 1)
    admin = await asyncpg.connect(url)
    name = url.rpartition("/")[2]
    for setting in settings:
        await admin.execute(f"ALTER DATABASE {name} SET {setting}")
    await admin.close()
    return await connected(url)


async def test_a_commit_is_on_the_disk_whatever_the_database_has_by_default(
    postgres_url: str,
) -> None:
    store = await store_over(postgres_url, "synchronous_commit = off", "statement_timeout = 200")
    connection = store._connection
    assert connection is not None
    assert await connection.fetchval("SHOW synchronous_commit") == "on"
    assert await connection.fetchval("SHOW statement_timeout") == "0"
    await store.close()


async def test_reads_take_as_long_as_they_need_whatever_the_database_has_by_default(
    postgres_url: str,
) -> None:
    limits = ["statement_timeout", "lock_timeout", "transaction_timeout", "idle_session_timeout"]
    store = await store_over(postgres_url, *(f"{limit} = 200" for limit in limits))
    own = store._connection
    assert own is not None
    async with store._lend() as reader:
        for connection in (reader, own):
            await connection.execute("SELECT pg_sleep(0.3)")
            assert [await connection.fetchval(f"SHOW {limit}") for limit in limits] == ["0"] * 4
    await store.close()


async def test_no_connection_is_silent_for_so_long_that_a_firewall_forgets_it(
    postgres_url: str,
) -> None:
    store = await store_over(postgres_url)
    own = store._connection
    assert own is not None
    prover, _, _ = await store._provers._new()
    async with store._lend() as reader:
        for connection in (own, prover, reader):
            # What the socket has: the server asks the system.
            assert await connection.fetchval("SHOW tcp_keepalives_idle") == "30"
    await prover.close()
    await store.close()


async def test_what_another_transaction_still_reads_is_vacuumed_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not skipped where the server's own vacuum is at it.
    monkeypatch.setattr(sql, "RECLAIM", "VACUUM (TRUNCATE FALSE) chunks")
    await make_tables(postgres_url)
    await start_node(postgres_url, 1, 1)
    reader, admin = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    store = await connected(postgres_url)
    key = LogKey(UUID(int=1), 0)
    await store.commit(
        Commit(1, 0, Changes([Chunk(key, n, n + 1, bytes(100_000)) for n in range(20)]))
    )
    dump = reader.transaction(isolation="repeatable_read")
    await dump.start()
    await reader.fetchval("SELECT count(*) FROM magnetar.chunks")
    await store.commit(Commit(2, 1, Changes(moves=[Move(key, 0, 20, [])])))
    await _until_counted(store, admin)
    vacuums = []
    for _ in range(3):
        await store.reclaim(1_000_000)
        vacuums.append(
            await admin.fetchval("SELECT pg_stat_get_vacuum_count('magnetar.chunks'::regclass)")
        )
    assert vacuums == [1, 1, 1]
    for number in range(3, 25, 2):
        chunks = [Chunk(key, n, n + 1, bytes(100_000)) for n in range(20)]
        await store.commit(Commit(number, number - 1, Changes(chunks)))
        moves = [Move(key, 0, 20, [])]
        await store.commit(Commit(number + 1, number, Changes(moves=moves)))
        await _until_counted(store, admin, 500 * (number + 1))
        await store.reclaim(1_000_000)
    # Each one goes through all that the dump keeps.
    assert await admin.fetchval("SELECT pg_stat_get_vacuum_count('magnetar.chunks'::regclass)") <= 7
    await dump.rollback()
    for connection in (reader, admin):
        await connection.close()
    await store.close()


#: A server that takes a while for each row that is deleted.
SLOW_DELETES = """
CREATE FUNCTION magnetar.slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(0.005); RETURN OLD; END $$;
CREATE TRIGGER slow BEFORE DELETE ON magnetar.chunks FOR EACH ROW EXECUTE FUNCTION magnetar.slow()
"""


async def test_a_sweep_reads_a_large_table_to_its_end(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_readers, "_READ_S", 0.2)
    store = await store_over(postgres_url)
    # What was prepared holds its tables until something is asked.
    assert await store.last_commit() == 0
    admin = await asyncpg.connect(postgres_url)
    # As long as it takes to go through many rows.
    lock = admin.transaction()
    await lock.start()
    await admin.execute("LOCK TABLE magnetar.chunks")

    async def read() -> list[bytes]:
        span = Span(LogKey(UUID(int=1), 0), 0, 9)
        return [data async for some in store.references([span]) for data in some]

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(1)
    await lock.commit()
    assert await reading == []
    await admin.close()
    await store.close()


@pytest.mark.parametrize("is_sweep", [True, False])
async def test_what_reads_ends_at_once_with_its_node_though_the_server_has_vanished(
    is_sweep: bool, postgres_server: PostgresServer, postgres_url: str
) -> None:
    store = await store_over(postgres_url)
    assert await store.last_commit() == 0
    admin = await asyncpg.connect(postgres_url)
    await admin.execute("BEGIN; LOCK TABLE magnetar.chunks")
    key = LogKey(UUID(int=1), 0)

    async def read() -> None:
        if not is_sweep:
            await store.load([Wanted(key)])
        async for _ in store.references([Span(key, 0, 9)]):
            pass

    reading = asyncio.ensure_future(read())
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    while not await admin.fetchval(waits):
        await asyncio.sleep(0.01)
    postgres_server.pause()
    try:
        reading.cancel()
        done, _ = await asyncio.wait([reading], timeout=5)
    finally:
        postgres_server.resume()
    assert done and reading.cancelled()
    await admin.execute("ROLLBACK")
    assert [some async for some in store.references([Span(key, 0, 9)])] == []
    await admin.close()
    await store.close()


@pytest.mark.parametrize("does", ["connects", "proves", "loads"])
async def test_a_call_that_a_lock_holds_up_keeps_no_process_of_the_server(
    does: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt would keep one more, until the server has no connection left for any client."""
    for module, limit in ((postgres_store, "CONNECT_S"), (postgres_provers, "CONNECT_S")):
        monkeypatch.setattr(module, limit, 0.5)
    monkeypatch.setattr(postgres_readers, "_READ_S", 0.5)
    store = await store_over(postgres_url)
    assert await store.last_commit() == 0
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "connects": store.connect,
        "proves": lambda: store.prove(1),
        "loads": lambda: store.load([Wanted(LogKey(UUID(int=1), 0))]),
    }
    admin = await asyncpg.connect(postgres_url)
    await admin.execute("BEGIN; LOCK TABLE magnetar.chunks, magnetar.nodes")
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        await calls[does]()
    async with asyncio.timeout(10):
        while await admin.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0.01)
    await admin.execute("ROLLBACK")
    await admin.close()
    await store.close()


@pytest.mark.parametrize("chunks", [[], [Chunk(LogKey(UUID(int=1), 0), 0, 2, b"moved")]])
async def test_a_move_is_given_up_in_time_though_the_server_has_vanished(
    chunks: list[Chunk],
    postgres_server: PostgresServer,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_store, "_COMMIT_S", 1.0)
    store = await store_over(postgres_url)
    # What was prepared holds its tables until something is asked.
    assert await store.last_commit() == 0
    key = LogKey(UUID(int=1), 0)
    admin = await asyncpg.connect(postgres_url)
    # What is removed waits, or what is written.
    if chunks:
        await admin.execute("BEGIN")
        await admin.execute("INSERT INTO magnetar.chunks VALUES ($1, 0, 0, 1, '')", key.topic_id)
    else:
        await admin.execute("BEGIN; LOCK TABLE magnetar.chunks")
    move = Changes(moves=[Move(key, 0, 2, chunks)])
    commit = asyncio.ensure_future(store.commit(Commit(1, 0, move)))
    while not await admin.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
        await asyncio.sleep(0.01)
    postgres_server.pause()
    try:
        done, _ = await asyncio.wait([commit], timeout=10)
    finally:
        postgres_server.resume()
    assert done
    with pytest.raises(OutcomeUnknown):
        await commit
    await admin.execute("ROLLBACK")
    await store.connect()
    assert await store.last_commit() == 0
    await admin.close()
    await store.close()


async def test_a_log_is_deleted_though_that_takes_longer_than_a_call_may(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_readers, "_READ_S", 1.0)
    await make_tables(postgres_url)
    await start_node(postgres_url, 1, 1)
    store = await connected(postgres_url)
    key, other = LogKey(UUID(int=1), 0), LogKey(UUID(int=1), 1)
    chunks = [Chunk(each, n, n + 1, b"x") for each in (key, other) for n in range(300)]
    await store.commit(Commit(1, 0, Changes(chunks)))
    admin = await asyncpg.connect(postgres_url)
    await admin.execute(SLOW_DELETES)
    await store.delete([key])
    assert [await store.read(each, 0, 100, 300) == [] for each in (key, other)] == [True, False]
    assert await store.remains([key.topic_id]) == [other]
    await admin.close()
    await store.close()


#: A server that counts the statements that delete chunks.
COUNT_DELETES = """
CREATE SEQUENCE magnetar.deletes;
CREATE FUNCTION magnetar.counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM nextval('magnetar.deletes'); RETURN NULL; END $$;
CREATE TRIGGER counted AFTER DELETE ON magnetar.chunks EXECUTE FUNCTION magnetar.counted()
"""
SMALL_CHUNKS = """
INSERT INTO magnetar.chunks SELECT $1::uuid, 0, n, n + 1, 'x' FROM generate_series(1, 20000) n"""


async def test_a_log_of_many_small_chunks_is_deleted_by_few_statements(postgres_url: str) -> None:
    store = await store_over(postgres_url)
    # What was prepared holds its tables until something is asked.
    assert await store.last_commit() == 0
    topic_id = UUID(int=1)
    admin = await asyncpg.connect(postgres_url)
    await admin.execute(SMALL_CHUNKS, topic_id)
    await admin.execute(COUNT_DELETES)
    await store.delete([LogKey(topic_id, 0)])
    assert await store.remains([topic_id]) == []
    assert await admin.fetchval("SELECT last_value FROM magnetar.deletes") < 100
    await admin.close()
    await store.close()
