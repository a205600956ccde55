"""Databases of a PostgreSQL server of the tests: one server for a process, one database for each.

The server starts when a test first asks for a database. It syncs nothing: tests that cut its power
start one of their own.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from tools.postgresql import PostgresServer

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server that runs until the tests end."""
    # Not in pytest's directory, which no other user may enter: the server never runs as root.
    directory = Path(tempfile.mkdtemp(prefix="magnetar-tests-"))
    directory.chmod(0o755)
    server = PostgresServer(directory, fsync="off")
    server.start()
    yield server
    server.stop(signal.SIGQUIT)
    shutil.rmtree(directory)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """An empty database."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres_server.url.removesuffix("postgres") + name
