"""Which servers a fail-over can lose something of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest

from compat_tests.waiting import eventually
from magnetar.storage import postgres_database
from magnetar.storage.catalog import Catalog
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.postgres_database import PostgresDatabase
from magnetar.storage.replication import Replication, read_replication
from tests.postgresql import until_commits_wait


@pytest.mark.parametrize(
    ("replication", "may_lose"),
    [
        (Replication(0, 0, ""), False),
        # Commits wait until the standby is there.
        (Replication(0, 0, "*"), False),
        (Replication(2, 0, ""), True),
        (Replication(2, 1, "ANY 1 (*)"), False),
        # Named is another one than those that are connected.
        (Replication(1, 0, "elsewhere"), True),
        # A role that may not see states: the setting has to be believed.
        (Replication(1, 1, ""), True),
    ],
)
def test_only_standbys_that_nothing_waits_for_may_be_behind(
    replication: Replication, may_lose: bool
) -> None:
    assert replication.may_lose is may_lose


def test_a_server_without_standbys_is_as_durable_as_its_disk(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url)
    database.open("some cluster")
    assert read_replication(database) == Replication(0, 0, "")
    database.close()


@contextmanager
def awaiting_standbys(url: str) -> Iterator[None]:
    """Let each commit of the server wait for a standby, which is away."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        try:
            admin.execute("SELECT pg_reload_conf()")
            await_setting(admin, "*")
            asyncio.run(until_commits_wait(url))
            yield
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
            await_setting(admin, "")


def test_a_change_whose_wait_for_a_standby_is_cancelled_is_not_known_to_be_there(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As long as it takes: the call would be given up after two seconds.
    monkeypatch.setattr(postgres_database, "_CALL_S", 60.0)
    with (
        psycopg.connect(postgres_url, autocommit=True) as admin,
        closing(PostgresDatabase(postgres_url)) as database,
    ):
        name = postgres_url.rpartition("/")[2]
        # A default that hides warnings.
        admin.execute(f"ALTER DATABASE {name} SET client_min_messages = error".encode())
        database.open("some cluster")
        with awaiting_standbys(postgres_url), ThreadPoolExecutor(1) as threads:
            cancelling = threads.submit(cancel_waiting, postgres_url)
            with (
                pytest.raises(CatalogUnavailable, match="synchronous replication"),
                database.transaction("change something") as statements,
            ):
                statements.execute("UPDATE cluster SET next_producer_id = next_producer_id + 1")
            cancelling.result()
        with database.transaction("change something") as statements:
            statements.execute("UPDATE cluster SET next_producer_id = next_producer_id + 1")


def test_a_node_whose_hand_over_waits_for_a_standby_commits_and_keeps_its_lease(
    postgres_url: str,
) -> None:
    """The server goes on with the hand-over, also when the node has given it up."""
    database = PostgresDatabase(postgres_url)
    with (
        closing(Catalog(None, is_shared=True, database=database)) as catalog,
        psycopg.connect(postgres_url, autocommit=True) as commits,
    ):
        incarnation = catalog.nodes.start(1)
        with awaiting_standbys(postgres_url):
            with pytest.raises(CatalogUnavailable):
                catalog.nodes.hand_over(1, incarnation, [])
            commits.execute("SET synchronous_commit = off; SET lock_timeout = 2000")
            commits.execute("UPDATE magnetar.nodes SET commit_seq = 1 WHERE node_id = 1")


def await_setting(admin: psycopg.Connection[tuple[str]], wanted: str) -> None:
    """Return when the server has taken over which standbys it waits for."""
    show = "SHOW synchronous_standby_names"
    eventually(lambda: admin.execute(show).fetchone() == (wanted,))


def cancel_waiting(url: str) -> None:
    """Cancel what waits for a standby, once something does."""
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with psycopg.connect(url, autocommit=True) as admin:
        eventually(lambda: admin.execute(cancel).fetchall())
