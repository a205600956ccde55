"""The commands that look at a cluster's database change nothing in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from logstore.remote.commit_store import StoreUnavailable
from logstore.remote.object_store import ObjectsUnavailable
from logstore.remote.references import Reference
from logstore.remote.remote_ledger import MOVED_TO
from magnetar.cli import cluster_storage
from magnetar.cli.main import main
from magnetar.storage import lost_objects
from magnetar.storage.catalog import Catalog
from magnetar.storage.cluster_objects import agreed_objects, objects_prefix
from magnetar.storage.history import halt
from magnetar.storage.postgres_database import PostgresDatabase
from tests.magnetar.storage.test_shared_catalog import row as topic_row
from tests.postgresql import postgres_server, postgres_url
from wire.records.header import iterate_batches

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
        catalog.nodes.start(7)
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
        catalog.nodes.end_lease(7, catalog.nodes.start(7))
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


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The steps that told of their progress: (name, how much there was to do, how much is done)."""
    done: list[tuple[str, int, int]] = []

    @contextmanager
    def counted(label: str, total: int) -> Iterator[Callable[[int], None]]:
        counts: list[int] = []
        yield counts.append
        done.append((label, total, sum(counts)))

    monkeypatch.setattr(cluster_storage, "progress_bar", counted)
    return done


def test_what_a_bucket_has_lost_is_told_and_given_up_with_consent_alone(
    postgres_url: str, tmp_path: Path, steps: list[tuple[str, int, int]]
) -> None:
    topic = topic_row("metals", 1)
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        told = cluster("repair", "--storage", postgres_url)
        assert told.exit_code == 0 and "nothing to repair" in told.stdout
        agreed_objects(catalog, f"file://{tmp_path}", "place")
        catalog.add_topic(topic)
        prefix = f"{objects_prefix(catalog)}/{topic.id}/0"
        keys = [f"{prefix}/{base:020}-{base + 10:020}-7-{base}" for base in (0, 10, 20)]
        references = [
            (topic.id, at, at + 5, Reference(key, 10 * half, 10).encode())
            for number, key in enumerate(keys)
            for half, at in enumerate((10 * number, 10 * number + 5))
        ]
        with catalog.database.transaction("move") as queries:
            attached = "INSERT INTO attachments VALUES (?, 0, ?, ?)"
            queries.execute(attached, (topic.id, MOVED_TO, b"1"))
            queries.execute(attached, (topic.id, f"{27:020}.state", b""))
            queries.execute(attached, (topic.id, f"{29:020}.snapshot", b""))
            queries.executemany("INSERT INTO chunks VALUES (?, 0, ?, ?, ?)", references)
            segments = [(topic.id, base, base + 10, 20) for base in (0, 10)]
            queries.executemany("INSERT INTO segments VALUES (?, 0, ?, ?, ?, 7)", segments)
    (tmp_path / prefix).mkdir(parents=True)
    # Another bucket of the same name, perhaps: consent is not enough.
    told = cluster("repair", "--storage", postgres_url, "--accept-lost-objects")
    assert told.exit_code == 1 and "is it the right one?" in told.stderr
    (tmp_path / keys[0]).write_bytes(bytes(20))
    (tmp_path / keys[1]).write_bytes(bytes(15))  # The second half alone is lost.
    told = cluster("repair", "--storage", postgres_url)
    assert told.exit_code == 1 and "--accept-lost-objects" in told.stderr
    assert "2 of the 3 objects" in told.stdout
    assert told.stdout.splitlines()[-1].split() == ["metals-0", "15", "29", "30", "B"]
    assert [chunk[3] for chunk in _chunks(postgres_url)] == [each[3] for each in references]

    told = cluster("repair", "--storage", postgres_url, "--accept-lost-objects")
    assert told.exit_code == 0 and "3 rows name these objects no more" in told.stdout
    listing, asking, giving_up = steps[-3:]
    assert listing == ("Listing objects", 3, 2)
    assert asking[1:] == (4, 4), "rows of one half may be whole"
    assert giving_up == ("Giving up", 3, 3)
    chunks = _chunks(postgres_url)
    assert [chunk[3] for chunk in chunks[:3]] == [each[3] for each in references[:3]]
    given_up = [
        (header.base_offset, header.next_offset, header.record_count)
        for chunk in chunks[3:]
        for header, _ in iterate_batches(chunk[3])
    ]
    # The cleaner compares.
    assert _rows(postgres_url, "base_offset, size_bytes", "segments") == [(0, 20), (10, 71)]
    # Snapshots of ours, and those that an import brings from Kafka, are of the ends of batches.
    assert given_up == [(15, 20, 0), (20, 25, 0), (25, 27, 0), (27, 29, 0), (29, 30, 0)]
    told = cluster("repair", "--storage", postgres_url)
    assert told.exit_code == 0 and "all 2 objects" in told.stdout


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (ObjectsUnavailable("list logs", "503"), "error: the bucket file://"),
        (StoreUnavailable("it stopped"), "error: the database cannot be compared with the bucket"),
    ],
)
def test_what_does_not_answer_is_no_reason_to_give_anything_up(
    trouble: Exception,
    said: str,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(Catalog(None, is_shared=True, database=PostgresDatabase(postgres_url))) as catalog:
        agreed_objects(catalog, f"file://{tmp_path}", "place")

    async def away(*_: object) -> None:
        raise trouble

    monkeypatch.setattr(lost_objects, "compare", away)
    told = cluster("repair", "--storage", postgres_url, "--accept-lost-objects")
    assert told.exit_code == 1 and said in told.stderr
    assert ("503" if isinstance(trouble, ObjectsUnavailable) else "it stopped") in told.stderr


def _chunks(url: str) -> list[Any]:
    return _rows(url, "topic_id, base_offset, end_offset, data", "chunks")


def _rows(url: str, columns: str, table: str) -> list[Any]:
    select = f"SELECT {columns} FROM magnetar.{table}"  # noqa: S608  # constants of tests
    with psycopg.connect(url) as connection:
        return connection.execute(f"{select} ORDER BY base_offset".encode()).fetchall()
