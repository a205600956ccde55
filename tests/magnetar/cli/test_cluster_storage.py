"""The commands that look at a cluster's database change nothing in it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from magnetar.cli.main import main
from magnetar.storage.catalog import Catalog
from magnetar.storage.history import halt
from magnetar.storage.postgres_database import PostgresDatabase
from tests.postgresql import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]


def cluster(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cluster", *arguments])


@pytest.mark.parametrize("command", ["status", "repair"])
def test_a_look_at_an_empty_database_makes_no_cluster(command: str, postgres_url: str) -> None:
    told = cluster(command, "--storage", postgres_url)
    assert told.exit_code == 1
    assert "has no cluster. Is it the right database?" in told.stderr
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT to_regnamespace('magnetar') IS NULL").fetchone()
    assert found == (True,)


@pytest.mark.parametrize("command", ["status", "repair"])
def test_a_look_brings_no_tables_up_to_date(command: str, postgres_url: str) -> None:
    # The nodes of the older version, which run, could not start again.
    assert cluster("init", "--storage", postgres_url).exit_code == 0
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE magnetar.schema_version SET version = version - 1")
    told = cluster(command, "--storage", postgres_url)
    assert told.exit_code == 1
    assert "was written by an older magnetar" in told.stderr


def test_the_command_brings_tables_up_to_date_while_older_nodes_run_on(
    postgres_url: str,
) -> None:
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        catalog.start_node(7)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SET search_path = magnetar; DROP FUNCTION is_leased")
        connection.execute("UPDATE magnetar.schema_version SET version = version - 1")
    assert cluster("init", "--storage", postgres_url).exit_code == 0
    told = cluster("status", "--storage", postgres_url, "--json")
    assert [each["live"] for each in json.loads(told.stdout)] == [True]


def test_a_cluster_that_has_halted_says_so_to_scripts_and_is_not_exported(
    postgres_url: str, tmp_path: Path
) -> None:
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        catalog.end_lease(7, catalog.start_node(7))
        halt(catalog.database, "commit 3 of node 7")
    told = cluster("status", "--storage", postgres_url, "--json")
    assert [each["halted"] for each in json.loads(told.stdout)] == ["commit 3 of node 7"]
    told = cluster("export", str(tmp_path / "target"), "--storage", postgres_url)
    assert told.exit_code == 1 and "--accept-loss" in told.stderr
    assert not [*tmp_path.iterdir()]
    assert cluster("repair", "--storage", postgres_url, "--accept-loss").exit_code == 0
    told = cluster("status", "--storage", postgres_url, "--json")
    assert [each["halted"] for each in json.loads(told.stdout)] == [None]


@pytest.mark.parametrize("url", ["", "mysql://localhost/x"])
def test_what_is_no_url_of_a_database_is_a_mistake_of_the_command(url: str) -> None:
    told = cluster("status", "--storage", url)
    assert told.exit_code == 2
    assert "write postgresql://USER@HOST:PORT/DATABASE" in told.stderr


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--allow-async-storage", "--allow-async-storage is about"),
        ("--objects=s3://bucket/prefix", "--objects needs"),
        ("--set=cluster.allow.async.storage=true", "error: cluster.allow.async.storage is about"),
        ("--set=cluster.objects=s3://bucket/prefix", "error: cluster.objects needs"),
    ],
)
def test_what_is_about_a_database_needs_one(option: str, named: str, tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["serve", "--data-dir", str(tmp_path / "data"), option])
    assert told.exit_code == 2
    assert named in told.stderr
    assert "--storage" in told.stderr
    assert not [*tmp_path.iterdir()]
