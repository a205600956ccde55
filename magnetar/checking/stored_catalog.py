"""What the catalog of a stopped broker says of topics, read without changing it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from magnetar.storage.catalog_schema import refusal_of_newer
from magnetar.storage.placing import NODES
from magnetar.storage.sqlite_database import FILE_NAME


class StoredTopic(NamedTuple):
    """A topic of the catalog."""

    topic_id: UUID
    partition_count: int
    #: Whether compaction may have left gaps in its logs.
    is_compacted: bool
    #: The node that leads each partition; none where there is one node.
    leaders: tuple[int, ...]

    def home_of(self, partition: int) -> str:
        """Return in which directory below DATA a partition belongs: "", or "nodes/2/"."""
        return f"{NODES}/{self.leaders[partition]}/" if partition < len(self.leaders) else ""


class StoredCatalog(NamedTuple):
    """The topics by name, and the ids of topics whose files are being deleted."""

    topics: dict[str, StoredTopic]
    deleted: frozenset[UUID]
    cluster_id: str

    @property
    def has_nodes(self) -> bool:
        """Whether several nodes have used it last."""
        return any(topic.leaders for topic in self.topics.values())


class CatalogDamaged(Exception):
    """The catalog cannot be read, or contradicts itself. Says how."""


def refusal_of_newer_catalog(directory: Path) -> str | None:
    """Return why the catalog of a newer release is left alone; None: it is not one."""
    path = directory / FILE_NAME
    if not path.is_file():
        return None  # SQLite would make it, or wait for a pipe.
    try:
        with closing(_connected(path)) as database:
            (done,) = database.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        return None  # It is missing or damaged, as the check will find.
    return refusal_of_newer(str(path), done)


def read_catalog(directory: Path) -> StoredCatalog | None:
    """Return the topics; None: there is no catalog, or an empty one. Raises CatalogDamaged."""
    path = directory / FILE_NAME
    if not path.exists() or not path.stat().st_size:
        return None
    database = None
    try:
        database = _connected(path)
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise CatalogDamaged(str(found))
        policies = dict(
            database.execute(
                "SELECT topic_id, value FROM topic_configs WHERE name = 'cleanup.policy'"
            )
        )
        leaders = _leaders(database)
        return StoredCatalog(
            {
                name: StoredTopic(
                    UUID(bytes=topic_id),
                    count,
                    bool(internal) or "compact" in policies.get(topic_id, ""),
                    tuple(leaders.get(topic_id, ())),
                )
                for topic_id, name, count, internal in database.execute(
                    "SELECT id, name, partition_count, internal FROM topics"
                )
            },
            frozenset(
                UUID(bytes=topic_id)
                for (topic_id,) in database.execute("SELECT id FROM deleted_topics")
            ),
            _cluster_id(database),
        )
    except (sqlite3.Error, ValueError) as error:
        raise CatalogDamaged(str(error)) from None
    finally:
        if database is not None:
            database.close()


def _connected(path: Path) -> sqlite3.Connection:
    # Without a write-ahead log SQLite is told that nothing changes: else it would leave one.
    is_whole = not path.with_name(f"{FILE_NAME}-wal").exists()
    uri = f"{path.resolve().as_uri()}?{'immutable=1' if is_whole else 'mode=ro'}"
    return sqlite3.connect(uri, uri=True)


def _cluster_id(database: sqlite3.Connection) -> str:
    row = database.execute("SELECT cluster_id FROM cluster").fetchone()
    if row is None:
        raise ValueError("it names no cluster")
    return str(row[0])


def _leaders(database: sqlite3.Connection) -> dict[bytes, list[int]]:
    """Return the nodes that lead the partitions of each topic; a catalog may be older than that."""
    found: dict[bytes, list[int]] = {}
    named = "SELECT name FROM sqlite_master WHERE name = 'partition_leaders'"
    if database.execute(named).fetchone() is not None:
        for topic_id, node_id in database.execute(
            "SELECT topic_id, node_id FROM partition_leaders ORDER BY topic_id, partition"
        ):
            found.setdefault(topic_id, []).append(node_id)
    return found
