"""The catalog keeps what it was told, gives no producer id twice, and says when it cannot."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.database import CatalogFailure
from magnetar.storage.sqlite_database import FILE_NAME

OpenCatalog = Callable[..., Catalog]


def row(name: str, **configs: str) -> TopicRow:
    return TopicRow(uuid4(), name, 3, 2, False, configs)


@pytest.fixture
def open_catalog() -> Iterator[OpenCatalog]:
    """As `Catalog`; closed at the end, if they are not yet."""
    with ExitStack() as stack:

        def opened(*arguments: Any, **options: Any) -> Catalog:
            catalog = Catalog(*arguments, **options)
            stack.callback(catalog.close)
            return catalog

        yield opened


def test_topics_survive_a_restart(tmp_path: Path, open_catalog: OpenCatalog) -> None:
    first, second = row("a"), row("b", **{"retention.ms": "5", "cleanup.policy": "compact"})
    catalog = open_catalog(tmp_path)
    catalog.add_topic(second)
    catalog.add_topic(first)
    catalog.close()
    assert open_catalog(tmp_path).topics() == [first, second]


def test_a_deleted_topic_is_gone_and_remembered(tmp_path: Path, open_catalog: OpenCatalog) -> None:
    catalog = open_catalog(tmp_path)
    topic = row("a", **{"retention.ms": "5"})
    catalog.add_topic(topic)
    assert topic.id not in catalog.deleted_topics()
    catalog.remove_topics([topic.id])
    assert catalog.topics() == []
    assert topic.id in catalog.deleted_topics()
    catalog.add_topic(again := row("a"))
    catalog.remove_topics([again.id], gone=[topic.id])
    assert catalog.deleted_topics() == {again.id}
    catalog.forget_deleted_topics([again.id])
    assert catalog.deleted_topics() == set()


def test_producer_ids_are_given_once(tmp_path: Path, open_catalog: OpenCatalog) -> None:
    catalog = open_catalog(tmp_path)
    assert [catalog.allocate_producer_ids(1000) for _ in range(3)] == [0, 1000, 2000]
    catalog.reserve_producer_ids_below(5000)
    catalog.reserve_producer_ids_below(10)
    catalog.close()
    assert open_catalog(tmp_path).allocate_producer_ids(10) == 5000


def test_starts_are_counted_and_the_cluster_keeps_its_id(
    tmp_path: Path, open_catalog: OpenCatalog
) -> None:
    epochs, ids = [], set()
    for _ in range(3):
        catalog = open_catalog(tmp_path)
        epochs.append(catalog.next_broker_epoch())
        ids.add(catalog.cluster_id())
        catalog.close()
    assert epochs == [0, 1, 2]
    assert len(ids) == 1
    assert len(ids.pop()) == 22


def test_a_new_catalog_takes_the_cluster_id_it_is_given(
    tmp_path: Path, open_catalog: OpenCatalog
) -> None:
    open_catalog(tmp_path, cluster_id="MkU3OEVBNTcwNTJENDM2Qg").close()
    assert open_catalog(tmp_path, cluster_id="other").cluster_id() == "MkU3OEVBNTcwNTJENDM2Qg"


def test_what_was_answered_survives_a_kill(tmp_path: Path, open_catalog: OpenCatalog) -> None:
    script = (
        "import os, sys; from pathlib import Path; from magnetar.storage.catalog import Catalog\n"
        "catalog = Catalog(Path(sys.argv[1])); catalog.allocate_producer_ids(1000)\n"
        "os.kill(os.getpid(), 9)"
    )
    died = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert died.returncode == -9
    assert open_catalog(tmp_path).allocate_producer_ids(1) == 1000


def test_a_catalog_of_a_newer_version_is_refused(tmp_path: Path, open_catalog: OpenCatalog) -> None:
    open_catalog(tmp_path).close()
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("PRAGMA user_version = 99")
    database.close()
    told = rf"^{tmp_path / FILE_NAME} was written by a newer magnetar \(schema 99, this one knows "
    with pytest.raises(CatalogFailure, match=told):
        open_catalog(tmp_path)


def test_a_file_that_is_no_catalog_is_refused(tmp_path: Path, open_catalog: OpenCatalog) -> None:
    (tmp_path / FILE_NAME).write_bytes(os.urandom(8192))
    with pytest.raises(CatalogFailure, match="cannot open"):
        open_catalog(tmp_path)


def test_a_full_disk_is_a_failure_and_leaves_the_catalog_as_it_was(
    tmp_path: Path, open_catalog: OpenCatalog
) -> None:
    catalog = open_catalog(tmp_path)
    catalog.add_topic(row("before"))
    with catalog._database.statements("limit") as database:
        database.execute("PRAGMA max_page_count = 1")
    large = row("large", **{f"name{number}": "x" * 1000 for number in range(100)})
    with pytest.raises(CatalogFailure, match="full"):
        catalog.add_topic(large)
    catalog.close()
    assert [topic.name for topic in open_catalog(tmp_path).topics()] == ["before"]


def test_in_memory_nothing_is_written(tmp_path: Path, open_catalog: OpenCatalog) -> None:
    catalog = open_catalog(None)
    catalog.add_topic(row("a"))
    assert [topic.name for topic in catalog.topics()] == ["a"]
    assert list(tmp_path.iterdir()) == []


def test_only_the_brokers_user_can_read_the_catalog(
    tmp_path: Path, open_catalog: OpenCatalog
) -> None:
    catalog = open_catalog(tmp_path)
    catalog.allocate_producer_ids(1)
    files = list(tmp_path.iterdir())
    assert len(files) == 3  # SQLite has two beside it.
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    catalog.close()
    (tmp_path / FILE_NAME).chmod(0o644)
    open_catalog(tmp_path)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
