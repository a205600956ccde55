"""Databases for brokers of a cluster: one server for this process, one database for a directory."""

from __future__ import annotations

import atexit
import shutil
import signal
import tempfile
from functools import cache
from pathlib import Path

import psycopg

from tools.postgresql import PostgresServer


@cache
def database_of(directory: str) -> str:
    """Return the URL of the database of a broker that has this directory; empty at first."""
    name = f"broker_{database_of.cache_info().misses}"
    url = server().url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return url.removesuffix("postgres") + name


def cleaned_in_database(url: str, topic: str, partition: int) -> int:
    """Return up to where a log is clean; -1: nothing is."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            """
            SELECT data FROM magnetar.attachments JOIN magnetar.topics AS topic
                ON topic.id = uuid_send(topic_id)
            WHERE topic.name = %s AND partition = %s AND attachments.name = 'cleaner-offset'
            """,
            (topic, partition),
        ).fetchone()
    return -1 if found is None else int.from_bytes(found[0])


@cache
def server() -> PostgresServer:
    """Return a server that runs until this process ends."""
    # Where every user may enter: PostgreSQL never runs as root.
    directory = Path(tempfile.mkdtemp(prefix="magnetar-databases-"))
    directory.chmod(0o755)
    # Many brokers at once, each of several nodes.
    started = PostgresServer(directory, max_connections="500")
    started.start()

    def end() -> None:
        started.stop(signal.SIGQUIT)
        shutil.rmtree(directory)

    atexit.register(end)
    return started
