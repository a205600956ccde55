"""The commands that look at a cluster's database change nothing in it."""

from __future__ import annotations

import psycopg
import pytest
from click.testing import CliRunner, Result

from magnetar.cli.main import main
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
