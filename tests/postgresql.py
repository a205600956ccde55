"""Databases of a PostgreSQL server of the tests: one server for a process, one database for each.

The server starts when a test first asks for a database. It syncs nothing: tests that cut its power
start one of their own.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from itertools import count

import asyncpg
import psycopg
import pytest

from tools.postgresql import PostgresServer, enterable_directory

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server that runs until the tests end."""
    with enterable_directory("magnetar-tests-") as directory:
        server = PostgresServer(directory, fsync="off")
        server.start()
        yield server
        server.stop(signal.SIGQUIT)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """An empty database."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres_server.url.removesuffix("postgres") + name


async def until_commits_wait(url: str) -> None:
    """Wait until commits wait for a standby, which is away.

    A session shows the new setting before that: the server's checkpointer tells its processes of
    standbys in its own time.
    """
    connection = await asyncpg.connect(url)
    emit = "SELECT pg_logical_emit_message(true, 'a', '')"
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    await connection.execute(emit, timeout=0.2)
                except TimeoutError:
                    return
    finally:
        await connection.close()
