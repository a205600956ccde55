"""A catalog in PostgreSQL survives a lost connection, and a server that hangs costs two seconds."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from random import Random
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from compat_tests.waiting import eventually
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import Change, Presence, TopicRow
from magnetar.storage.database import CatalogFailure, CatalogUnavailable
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.postgres_database import PostgresDatabase, shown
from magnetar.storage.postgres_schema import MIGRATIONS
from tools.postgresql import PostgresServer
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def open_catalog(url: str) -> Catalog:
    return Catalog(None, is_shared=True, database=PostgresDatabase(url))


def end_other_sessions(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        # The sessions end by themselves, soon.
        left = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        while connection.execute(left).fetchone() != (1,):
            pass


@contextmanager
def hanging(server: PostgresServer) -> Iterator[None]:
    """Stop every process of the server, as a host that hangs does."""
    found = processes(server.pid)
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in found:
            os.kill(pid, signal.SIGCONT)


def processes(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [pid, *(int(child) for child in children.read().split())]


def test_no_connection_is_silent_for_so_long_that_a_firewall_forgets_it(postgres_url: str) -> None:
    with (
        closing(open_catalog(postgres_url)) as catalog,
        catalog.database.statements("look") as statements,
    ):
        # What the socket has: the server asks the system.
        assert statements.execute("SHOW tcp_keepalives_idle").fetchone() == ("30",)


def test_changes_follow_one_another_whatever_the_database_has_by_default(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        name = postgres_url.rpartition("/")[2]
        setting = "default_transaction_isolation = 'repeatable read'"
        admin.execute(f"ALTER DATABASE {name} SET {setting}".encode())
        first, second = open_catalog(postgres_url), open_catalog(postgres_url)
        with ThreadPoolExecutor(1) as pool:
            with first.database.transaction("change") as statements:
                waiting = pool.submit(second.allocate_producer_ids, 10)
                waits = "SELECT true FROM pg_locks WHERE NOT granted"
                eventually(lambda: admin.execute(waits).fetchone())
                statements.execute("UPDATE cluster SET change_count = change_count + 1")
            assert waiting.result() == 0
        first.close()
        second.close()


def test_changes_take_as_long_as_they_need_whatever_the_database_has_by_default(
    postgres_url: str,
) -> None:
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} SET transaction_timeout = 200".encode())
    with (
        closing(open_catalog(postgres_url)) as catalog,
        catalog.database.transaction("change") as statements,
    ):
        statements.execute("SELECT pg_sleep(0.3)")


@pytest.mark.parametrize("limit", ["idle_in_transaction_session_timeout", "transaction_timeout"])
def test_a_session_that_the_server_has_ended_is_unavailable(postgres_url: str, limit: str) -> None:
    """A node that stood still for so long goes on."""
    with closing(open_catalog(postgres_url)) as catalog:
        # The reason may be lost with the connection.
        with (
            pytest.raises(CatalogUnavailable, match="cannot change"),
            catalog.database.transaction("change") as statements,
        ):
            statements.execute(f"SET {limit} = 1")
            time.sleep(0.1)  # The server ends the session meanwhile.
            statements.execute("SELECT 1")
        assert catalog.allocate_producer_ids(10) == 0


def test_a_connection_that_ended_while_it_idled_is_not_noticed(postgres_url: str) -> None:
    catalog = open_catalog(postgres_url)
    for _ in range(2):
        assert catalog.allocate_producer_ids(10) in (0, 10)
        end_other_sessions(postgres_url)
    assert catalog.changes.count() == 2
    catalog.close()


def test_a_server_that_hangs_costs_two_seconds_and_the_next_call_is_good(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    catalog = open_catalog(postgres_url)
    began = time.monotonic()
    with hanging(postgres_server), pytest.raises(CatalogUnavailable, match="no answer") as raised:
        catalog.allocate_producer_ids(10)
    assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert time.monotonic() - began < 10
    assert catalog.allocate_producer_ids(10) in (0, 10)
    catalog.close()


def test_a_server_that_is_gone_is_unavailable() -> None:
    with pytest.raises(CatalogUnavailable, match="127.0.0.1:1"):
        open_catalog("postgresql://127.0.0.1:1/x")


def test_a_host_that_does_not_answer_costs_its_time_once(postgres_url: str) -> None:
    """One that has vanished refuses no connection, as one that is paused accepts them all."""
    parts = conninfo_to_dict(postgres_url)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = f"{silent.getsockname()[1]},{parts['port']}"
        url = make_conninfo(postgres_url, host="127.0.0.1,127.0.0.1", port=ports)
        with closing(open_catalog(url)) as catalog:
            end_other_sessions(postgres_url)
            began = time.monotonic()
            assert catalog.allocate_producer_ids(10) == 0
            assert time.monotonic() - began < 1.9


def test_hosts_that_are_gone_are_all_named() -> None:
    with pytest.raises(CatalogUnavailable, match=r"127\.0\.0\.1:1/x.*127\.0\.0\.1:2/x"):
        open_catalog("postgresql://127.0.0.1:1,127.0.0.1:2/x")


def test_a_catalog_of_a_newer_version_is_refused(postgres_url: str) -> None:
    open_catalog(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE magnetar.schema_version SET version = 99")
    with pytest.raises(CatalogFailure, match="newer magnetar"):
        open_catalog(postgres_url)


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_tables_of_an_older_version_become_those_of_this_one(
    postgres_url: str, version: int
) -> None:
    def columns() -> list[tuple[object, ...]]:
        with psycopg.connect(postgres_url) as connection:
            return connection.execute(
                "SELECT table_name, column_name, data_type, column_default, is_nullable"
                " FROM information_schema.columns WHERE table_schema = 'magnetar' ORDER BY 1, 2"
            ).fetchall()

    open_catalog(postgres_url).close()
    fresh = columns()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DROP SCHEMA magnetar CASCADE; CREATE SCHEMA magnetar")
        connection.execute("SET search_path = magnetar")
        connection.execute("CREATE TABLE schema_version (version int NOT NULL)")
        connection.execute("INSERT INTO schema_version VALUES (%s)", (version,))
        for script in MIGRATIONS[:version]:
            connection.execute(script.encode())
        connection.execute("INSERT INTO cluster VALUES (1, 'kept', -1, 0, 0, 'secret')")
    with closing(open_catalog(postgres_url)) as catalog:
        assert catalog.cluster_id() == "kept"
        assert catalog.nodes.start(1) == 0
    assert columns() == fresh


def test_tables_wait_for_nodes_of_the_older_version(postgres_url: str) -> None:
    with closing(open_catalog(postgres_url)) as catalog:
        catalog.nodes.start(3, Presence("host:/data", {}, "", "0.9"))
        incarnation = catalog.nodes.start(5)
        catalog.nodes.end_lease(5, incarnation)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SET search_path = magnetar; DROP FUNCTION is_leased")
        connection.execute("UPDATE schema_version SET version = version - 1")
        with pytest.raises(CatalogFailure) as refused:
            open_catalog(postgres_url)
        assert "nodes of that version live: node 3 (host:/data, magnetar 0.9). Stop" in str(
            refused.value
        )
        assert "magnetar cluster init" in str(refused.value)
        assert connection.execute("SELECT to_regproc('is_leased')").fetchone() == (None,)
        connection.execute("UPDATE nodes SET lease_until = now() - interval '1 ms'")
    open_catalog(postgres_url).close()


def test_tables_do_not_wait_for_the_lease_of_a_killed_node_of_the_same_place(
    postgres_url: str,
) -> None:
    """Who starts there holds the place's lock, so what had that lease is gone."""
    owner = "host:/data"

    def start(others: str) -> None:
        with closing(open_catalog(postgres_url)) as catalog:
            catalog.nodes.start(3, Presence(owner, {}, "", "0.9"))
            catalog.nodes.start(5, Presence(others, {}, "", "0.9"))
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("SET search_path = magnetar; DROP FUNCTION is_leased")
            connection.execute("UPDATE schema_version SET version = version - 1")
        database = PostgresDatabase(postgres_url, owner=owner)
        Catalog(None, is_shared=True, database=database).close()

    start(owner)
    with pytest.raises(CatalogFailure, match=r"live: node 5 \(other:/data, magnetar 0.9\). Stop"):
        start("other:/data")


@pytest.mark.parametrize("done", [0, len(MIGRATIONS) - 1])
def test_a_node_that_finds_the_tables_made_meanwhile_starts_beside_the_one_that_made_them(
    done: int, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_catalog(postgres_url)) as catalog:
        catalog.nodes.start(3)
    database = PostgresDatabase(postgres_url)
    found = [done, len(MIGRATIONS)]
    monkeypatch.setattr(database, "_version", lambda _: found.pop(0))
    Catalog(None, is_shared=True, database=database).close()
    assert not found


def test_what_no_text_can_hold_refuses_the_request_alone(postgres_url: str) -> None:
    with closing(open_catalog(postgres_url)) as catalog:
        with pytest.raises(KafkaError, match="NUL") as refused:
            catalog.set_resource_configs(1, "a\0b", {"x": "1"})
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        catalog.set_resource_configs(1, "b", {"x": "1"})
        assert catalog.resource_configs() == {(1, "b"): {"x": "1"}}


def test_a_name_that_no_index_can_hold_refuses_the_request_for_good(postgres_url: str) -> None:
    """A client that is told to come back would come for ever."""
    name = "".join(map(chr, Random(1).sample(range(0x10000, 0x20000), 2_000)))
    with closing(open_catalog(postgres_url)) as catalog:
        with pytest.raises(KafkaError, match="index") as refused:
            catalog.add_acls([(2, name, 3, "User:ada", "*", 3, 3)])
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert catalog.acls() == []


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_texts_are_those_of_a_database_whatever_its_encoding(
    postgres_url: str, encoding: str
) -> None:
    name = f"of_{encoding.lower()}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        # The names of tests' databases are free; this server is of all tests.
        connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
            " TEMPLATE template0".encode()
        )
    url = f"{postgres_url.rpartition('/')[0]}/{name}?client_encoding=LATIN1"
    with closing(open_catalog(url)) as catalog:
        assert len(catalog.cluster_id()) == 22
        catalog.set_resource_configs(1, "é", {"x": "1"})
        assert catalog.resource_configs() == {(1, "é"): {"x": "1"}}
        if encoding == "LATIN1":
            with pytest.raises(KafkaError, match="no equivalent"):
                catalog.set_resource_configs(1, "日本", {"x": "1"})


def test_a_server_that_takes_no_writes_is_told_with_the_way_out(postgres_url: str) -> None:
    open_catalog(postgres_url).close()
    read_only = f"{postgres_url}?options=-cdefault_transaction_read_only%3Don"
    with closing(open_catalog(read_only)) as catalog:
        assert catalog.nodes.members() == []
        with pytest.raises(CatalogUnavailable, match="target_session_attrs=read-write"):
            catalog.nodes.claim("place", [1])


def test_a_role_without_rights_is_told_which(postgres_url: str) -> None:
    open_catalog(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS bystander")
        connection.execute("CREATE ROLE bystander LOGIN")
        of_other = postgres_url.replace("postgres@", "bystander@")
        assert of_other != postgres_url
        with pytest.raises(CatalogFailure, match="GRANT USAGE ON SCHEMA magnetar"):
            open_catalog(of_other)
        connection.execute("GRANT USAGE ON SCHEMA magnetar TO bystander")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA magnetar TO bystander")
        with closing(open_catalog(of_other)) as catalog:
            assert catalog.nodes.start(1) == 0
        connection.execute("DROP OWNED BY bystander")
        connection.execute("DROP ROLE bystander")


def test_no_message_shows_the_password() -> None:
    assert shown("postgresql://ada:secret@db.example:5433/kafka") == (
        "postgresql://ada@db.example:5433/kafka"
    )
    with pytest.raises(CatalogFailure, match="--storage") as raised:
        PostgresDatabase("mysql://ada:secret@db.example")
    assert "secret" not in str(raised.value)


def test_an_acl_of_a_long_name_is_kept_and_removed(postgres_url: str) -> None:
    """An index of PostgreSQL takes 2,704 bytes; what other nodes are told must be no longer."""
    # In an order that cannot be compressed.
    letters = random.Random(1).choices([*map(chr, range(0x4E00, 0x9FFF))], k=800)
    acl = (2, "".join(letters), 3, "User:ada", "*", 3, 3)
    with closing(open_catalog(postgres_url)) as catalog:
        catalog.nodes.start(1)
        version = catalog.changes.count()
        catalog.add_acls([acl])
        assert catalog.acls() == [acl]
        assert catalog.changes.since(version)[1] == [Change("acls", "")]
        catalog.remove_acls([acl])
        assert catalog.acls() == []


def test_a_topic_of_many_partitions_is_made_within_the_time_of_a_call(postgres_url: str) -> None:
    """All other changes of the catalog wait for this one."""
    count = 40_000
    leaders = tuple(Elsewhere(1 + index % 2, 0) for index in range(count))
    row = TopicRow(uuid4(), "large", count, 1, False, {}, leaders)
    with closing(open_catalog(postgres_url)) as catalog:
        for node_id in (1, 2):
            catalog.nodes.start(node_id)
        catalog.add_topic(row)
        assert catalog.nodes.led_counts() == {1: count / 2, 2: count / 2}
        stored = catalog.topic(row.id)
        assert stored is not None
        assert [one.node_id for one in stored.leaders] == [one.node_id for one in leaders]
