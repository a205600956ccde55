"""The tables of a store in PostgreSQL for tests, and the node that may write, which connects."""

from __future__ import annotations

import asyncpg

from logstore.remote.postgres_schema import TABLES
from logstore.remote.postgres_store import PostgresStore

_NODES = """
CREATE SCHEMA magnetar; SET search_path = magnetar;
CREATE TABLE nodes (node_id int PRIMARY KEY, incarnation bigint, commit_seq bigint,
    lease_until timestamptz);
"""


async def make_tables(url: str) -> None:
    """Make what the store needs in an empty database."""
    connection = await asyncpg.connect(url)
    await connection.execute(_NODES + TABLES)
    await connection.close()


async def start_node(url: str, node_id: int, incarnation: int) -> None:
    """Let this incarnation write from here on, and no other one of the node."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "INSERT INTO magnetar.nodes VALUES ($1, $2, 0, now())"
        " ON CONFLICT (node_id) DO UPDATE SET incarnation = $2, commit_seq = 0",
        node_id,
        incarnation,
    )
    await connection.close()


async def connected(url: str, incarnation: int = 1) -> PostgresStore:
    """Return a store at `url` that commits as this incarnation of node 1."""
    store = PostgresStore(url)
    store.begin_as(1, incarnation)
    await store.connect()
    return store


async def lease_until_ms(url: str, node_id: int) -> int:
    """Return when a node's lease ends, by the server's clock."""
    connection = await asyncpg.connect(url)
    ends_s = await connection.fetchval(
        "SELECT extract(epoch FROM lease_until) FROM magnetar.nodes WHERE node_id = $1", node_id
    )
    await connection.close()
    return int(ends_s * 1_000)
