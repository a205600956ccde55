"""The catalog: the broker's state besides its logs, in a few SQLite tables.

Owns topics, configs, client quotas, users, ACLs, delegation tokens, the producer id counter, the
cluster's id and the count of the broker's starts. One transaction per admin change, durable when
the call returns (WAL, synchronous=FULL; less where the broker's durability promises less). Calls
run on the event loop: they are rare and take a fraction of a millisecond, or the time of one sync.
Topics are made, grown and deleted in a thread, since clients may ask for thousands; calls wait for
one another. A failing or full disk is a CatalogFailure, which stops the broker.

Schema changes are numbered steps in `_MIGRATIONS`; `PRAGMA user_version` counts those made.
"""

from __future__ import annotations

import base64
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import NamedTuple
from uuid import UUID

from logstore.disk.durability import Durability

FILE_NAME = "catalog.sqlite"
_MODE = 0o600

_MIGRATIONS = (
    """
    CREATE TABLE cluster (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        cluster_id TEXT NOT NULL,
        broker_epoch INTEGER NOT NULL,
        next_producer_id INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE topics (
        id BLOB PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        partition_count INTEGER NOT NULL CHECK (partition_count > 0),
        replication_factor INTEGER NOT NULL,
        internal INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE topic_configs (
        topic_id BLOB NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (topic_id, name)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE deleted_topics (
        id BLOB PRIMARY KEY
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE resource_configs (
        resource_type INTEGER NOT NULL,
        resource_name TEXT NOT NULL,
        name TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (resource_type, resource_name, name)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE client_quotas (
        entity TEXT NOT NULL,
        name TEXT NOT NULL,
        value REAL NOT NULL,
        PRIMARY KEY (entity, name)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE cluster ADD COLUMN change_count INTEGER NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE cluster ADD COLUMN secret BLOB NOT NULL DEFAULT x'';
    UPDATE cluster SET secret = randomblob(32);
    CREATE TABLE scram_credentials (
        user TEXT NOT NULL,
        mechanism TEXT NOT NULL,
        salt BLOB NOT NULL,
        iterations INTEGER NOT NULL,
        stored_key BLOB NOT NULL,
        server_key BLOB NOT NULL,
        PRIMARY KEY (user, mechanism)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE acls (
        resource INTEGER NOT NULL,
        name TEXT NOT NULL,
        pattern INTEGER NOT NULL,
        principal TEXT NOT NULL,
        host TEXT NOT NULL,
        operation INTEGER NOT NULL,
        permission INTEGER NOT NULL,
        PRIMARY KEY (resource, name, pattern, principal, host, operation, permission)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE delegation_tokens (
        id TEXT PRIMARY KEY,
        owner_type TEXT NOT NULL,
        owner TEXT NOT NULL,
        requester_type TEXT NOT NULL,
        requester TEXT NOT NULL,
        renewers TEXT NOT NULL,
        issued_ms INTEGER NOT NULL,
        expires_ms INTEGER NOT NULL,
        ends_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
)

_SYNCHRONOUS = {
    Durability.FSYNC: "FULL",
    Durability.PAGE_CACHE: "OFF",
    Durability.MEMORY: "OFF",
}


#: Resource, name, pattern, principal, host, operation and permission of one ACL.
AclRow = tuple[int, str, int, str, str, int, int]
#: Id of one delegation token, types and names of its owner and its requester, its renewers as JSON,
#: when it was issued, until when it is good, and until when it may be renewed.
TokenRow = tuple[str, str, str, str, str, str, int, int, int]


class CatalogFailure(OSError):
    """The catalog's disk failed or is full, or its file is not a catalog: the broker stops."""


class TopicRow(NamedTuple):
    """One topic as it is stored; `configs` are its own settings as text."""

    id: UUID
    name: str
    partition_count: int
    replication_factor: int
    is_internal: bool
    configs: dict[str, str]


class Catalog:
    """One open catalog. Raises CatalogFailure from every method."""

    def __init__(
        self,
        directory: Path | None,
        durability: Durability = Durability.FSYNC,
        *,
        cluster_id: str | None = None,
    ) -> None:
        """Open or create the catalog in `directory`, or in memory: for None, or memory durability.

        A new catalog takes `cluster_id`, or a random one.
        """
        self._new_cluster_id = cluster_id or _new_id()
        # Reentrant, since migrations run inside the opening.
        self._lock = RLock()
        in_memory = directory is None or durability is Durability.MEMORY
        self._path = ":memory:" if in_memory or directory is None else str(directory / FILE_NAME)
        if not in_memory:
            _make_private(Path(self._path))
        with self._failing("open"):
            # `isolation_level=None`: this class begins and ends transactions itself.
            # `check_same_thread=False`: topics are changed in a thread; the lock keeps its calls
            # apart.
            self._database = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False
            )
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
                # Off by default in SQLite: the configs of a deleted topic would stay behind.
                self._database.execute("PRAGMA foreign_keys = ON")
                self._migrate()
            except BaseException:
                self._database.close()
                raise

    def close(self) -> None:
        """Close; everything is durable already."""
        with self._failing("close"):
            self._database.close()

    def topics(self) -> list[TopicRow]:
        """Return every topic, in the order of names."""
        with self._failing("read topics"):
            configs: dict[bytes, dict[str, str]] = {}
            # Two queries for all topics, not two for each: there may be tens of thousands.
            for topic_id, name, value in self._database.execute(
                "SELECT topic_id, name, value FROM topic_configs"
            ):
                configs.setdefault(topic_id, {})[name] = value
            rows = self._database.execute(
                "SELECT id, name, partition_count, replication_factor, internal"
                " FROM topics ORDER BY name"
            )
            return [
                TopicRow(
                    UUID(bytes=topic_id),
                    name,
                    partitions,
                    factor,
                    bool(internal),
                    configs.get(topic_id, {}),
                )
                for topic_id, name, partitions, factor, internal in rows
            ]

    def add_topic(self, topic: TopicRow) -> None:
        """Store a topic whose name is new, and whose id no other topic has."""
        with self._change("add topic") as database:
            # An import can bring back, with its id, a topic that was deleted here.
            database.execute("DELETE FROM deleted_topics WHERE id = ?", (topic.id.bytes,))
            database.execute(
                "INSERT INTO topics VALUES (?, ?, ?, ?, ?)",
                (
                    topic.id.bytes,
                    topic.name,
                    topic.partition_count,
                    topic.replication_factor,
                    int(topic.is_internal),
                ),
            )
            _insert_configs(database, topic.id, topic.configs)

    def set_partition_count(self, topic_id: UUID, partition_count: int) -> None:
        """Set the number of partitions of a topic that exists."""
        with self._change("set partition count") as database:
            database.execute(
                "UPDATE topics SET partition_count = ? WHERE id = ?",
                (partition_count, topic_id.bytes),
            )

    def set_topic_configs(self, topic_id: UUID, configs: Mapping[str, str]) -> None:
        """Replace all settings of a topic's own."""
        with self._change("set topic configs") as database:
            database.execute("DELETE FROM topic_configs WHERE topic_id = ?", (topic_id.bytes,))
            _insert_configs(database, topic_id, configs)

    def resource_configs(self) -> dict[tuple[int, str], dict[str, str]]:
        """Return the configs of all resources but topics, by type (KIP-226's codes) and name."""
        with self._failing("read configs"):
            configs: dict[tuple[int, str], dict[str, str]] = {}
            for resource_type, resource_name, name, value in self._database.execute(
                "SELECT resource_type, resource_name, name, value FROM resource_configs"
            ):
                configs.setdefault((resource_type, resource_name), {})[name] = value
            return configs

    def set_resource_configs(
        self, resource_type: int, resource_name: str, configs: Mapping[str, str]
    ) -> None:
        """Replace all configs of one resource, which is not a topic."""
        with self._change("set configs") as database:
            database.execute(
                "DELETE FROM resource_configs WHERE resource_type = ? AND resource_name = ?",
                (resource_type, resource_name),
            )
            database.executemany(
                "INSERT INTO resource_configs VALUES (?, ?, ?, ?)",
                [(resource_type, resource_name, *each) for each in configs.items()],
            )

    def client_quotas(self) -> dict[str, dict[str, float]]:
        """Return the quotas of each entity. The caller chooses the form of an entity."""
        with self._failing("read quotas"):
            quotas: dict[str, dict[str, float]] = {}
            for entity, name, value in self._database.execute(
                "SELECT entity, name, value FROM client_quotas"
            ):
                quotas.setdefault(entity, {})[name] = value
            return quotas

    def set_client_quotas(self, quotas: Mapping[str, Mapping[str, float]]) -> None:
        """Replace the quotas of these entities; those without any are forgotten."""
        with self._change("set quotas") as database:
            for entity, values in quotas.items():
                database.execute("DELETE FROM client_quotas WHERE entity = ?", (entity,))
                database.executemany(
                    "INSERT INTO client_quotas VALUES (?, ?, ?)",
                    [(entity, *each) for each in values.items()],
                )

    def secret(self) -> bytes:
        """Return the 32 random bytes that the catalog got when it was created."""
        with self._failing("read the secret"):
            return bytes(self._database.execute("SELECT secret FROM cluster").fetchone()[0])

    def scram_credentials(self) -> list[tuple[str, str, bytes, int, bytes, bytes]]:
        """Return user, mechanism, salt, iterations, StoredKey and ServerKey of each credential."""
        with self._failing("read SCRAM credentials"):
            return self._database.execute("SELECT * FROM scram_credentials").fetchall()

    def set_scram_credentials(
        self, user: str, credentials: Iterable[tuple[str, bytes, int, bytes, bytes]]
    ) -> None:
        """Replace all credentials of a user, each without the user's name."""
        with self._change("set SCRAM credentials") as database:
            database.execute("DELETE FROM scram_credentials WHERE user = ?", (user,))
            database.executemany(
                "INSERT INTO scram_credentials VALUES (?, ?, ?, ?, ?, ?)",
                [(user, *each) for each in credentials],
            )

    def acls(self) -> list[AclRow]:
        """Return every access control list."""
        with self._failing("read ACLs"):
            return self._database.execute("SELECT * FROM acls").fetchall()

    def add_acls(self, acls: Iterable[AclRow]) -> None:
        """Add access control lists."""
        with self._change("add ACLs") as database:
            database.executemany("INSERT OR IGNORE INTO acls VALUES (?, ?, ?, ?, ?, ?, ?)", acls)

    def remove_acls(self, acls: Iterable[AclRow]) -> None:
        """Remove access control lists."""
        with self._change("remove ACLs") as database:
            database.executemany(
                "DELETE FROM acls WHERE resource = ? AND name = ? AND pattern = ? AND principal = ?"
                " AND host = ? AND operation = ? AND permission = ?",
                acls,
            )

    def delegation_tokens(self) -> list[TokenRow]:
        """Return every delegation token, the oldest first."""
        with self._failing("read delegation tokens"):
            return self._database.execute(
                "SELECT * FROM delegation_tokens ORDER BY issued_ms, id"
            ).fetchall()

    def put_delegation_token(self, token: TokenRow) -> None:
        """Add a delegation token, or replace the one of its id."""
        with self._change("put a delegation token") as database:
            database.execute(
                "INSERT OR REPLACE INTO delegation_tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", token
            )

    def remove_delegation_tokens(self, ids: Iterable[str]) -> None:
        """Remove the delegation tokens of these ids."""
        with self._change("remove delegation tokens") as database:
            database.executemany(
                "DELETE FROM delegation_tokens WHERE id = ?", [(each,) for each in ids]
            )

    def remove_topics(self, topic_ids: Iterable[UUID], gone: Iterable[UUID] = ()) -> None:
        """Remove topics and their configs, and remember that their files must go.

        Forgets that of deleted topics whose files are durably `gone`.
        """
        ids = [(topic_id.bytes,) for topic_id in topic_ids]
        with self._change("remove topics") as database:
            _forget_deleted(database, gone)
            database.executemany("DELETE FROM topics WHERE id = ?", ids)
            database.executemany("INSERT OR IGNORE INTO deleted_topics VALUES (?)", ids)

    def deleted_topics(self) -> set[UUID]:
        """Return the ids of deleted topics: their files, where there are any, are remains."""
        with self._failing("read deleted topics"):
            rows = self._database.execute("SELECT id FROM deleted_topics")
            return {UUID(bytes=topic_id) for (topic_id,) in rows}

    def forget_deleted_topics(self, gone: Iterable[UUID]) -> None:
        """Forget deleted topics whose files are durably gone."""
        with self._change("forget deleted topics") as database:
            _forget_deleted(database, gone)

    def change_count(self) -> int:
        """Return how many changes were made since the catalog was created."""
        with self._failing("read the count of changes"):
            return int(self._database.execute("SELECT change_count FROM cluster").fetchone()[0])

    def cluster_id(self) -> str:
        """Return the id that the cluster got when its catalog was created."""
        with self._failing("read cluster id"):
            row = self._database.execute("SELECT cluster_id FROM cluster").fetchone()
            return str(row[0])

    def next_broker_epoch(self) -> int:
        """Count one more start and return its number, 0 at the first. Durable before it returns."""
        with self._change("count start") as database:
            row = database.execute(
                "UPDATE cluster SET broker_epoch = broker_epoch + 1 RETURNING broker_epoch"
            ).fetchone()
            return int(row[0])

    def raise_broker_epoch(self, at_least: int) -> None:
        """Number the next start above `at_least`: an epoch found in adopted logs."""
        with self._change("raise epoch") as database:
            database.execute("UPDATE cluster SET broker_epoch = max(broker_epoch, ?)", (at_least,))

    def allocate_producer_ids(self, block_size: int) -> int:
        """Reserve `block_size` producer ids and return the first; no id is ever given twice.

        The reservation is durable before it returns.
        """
        with self._change("allocate producer ids") as database:
            row = database.execute(
                "UPDATE cluster SET next_producer_id = next_producer_id + ?"
                " RETURNING next_producer_id",
                (block_size,),
            ).fetchone()
            return int(row[0]) - block_size

    def reserve_producer_ids_below(self, end_producer_id: int) -> None:
        """Give out no id below `end_producer_id` (exclusive): those ids occur in logs."""
        with self._change("reserve producer ids") as database:
            database.execute(
                "UPDATE cluster SET next_producer_id = max(next_producer_id, ?)",
                (end_producer_id,),
            )

    def _migrate(self) -> None:
        done = int(self._database.execute("PRAGMA user_version").fetchone()[0])
        # A newer schema may mean anything: a start that guessed would damage it.
        if done > len(_MIGRATIONS):
            raise CatalogFailure(
                f"{self._path} was written by a newer magnetar (schema {done}, this one knows"
                f" {len(_MIGRATIONS)}). Start that version, or another data directory."
            )
        for version, script in enumerate(_MIGRATIONS[done:], done + 1):
            with self._transaction("migrate") as database:
                # Not `executescript`, which would commit the transaction first.
                for statement in script.split(";"):
                    database.execute(statement)
                if version == 1:
                    # -1: the first start counts up to epoch 0.
                    database.execute(
                        "INSERT INTO cluster VALUES (1, ?, -1, 0)", (self._new_cluster_id,)
                    )
                # In the same transaction: after a crash a step is made whole, or once more.
                database.execute(f"PRAGMA user_version = {version}")

    @contextmanager
    def _change(self, doing: str) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction, and count it as a change."""
        with self._transaction(doing) as database:
            yield database
            database.execute("UPDATE cluster SET change_count = change_count + 1")

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction, rolled back on any exception."""
        with self._failing(doing):
            # The lock is taken at once: a transaction that takes it later could fail half-way.
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                # SQLite has rolled back by itself after some errors, a full disk among them.
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            raise CatalogFailure(f"catalog {self._path}: cannot {doing}: {error}") from error


def _make_private(path: Path) -> None:
    """Let the broker's user alone read the catalog: it has what SCRAM keeps of passwords.

    SQLite gives the files beside it the same mode. Raises CatalogFailure.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, _MODE))
        # A catalog of an earlier release; that of another user is left as it is.
        if path.stat().st_mode & 0o077:
            with suppress(PermissionError):
                path.chmod(_MODE)
    except OSError as error:
        raise CatalogFailure(f"catalog {path}: cannot open: {error.strerror}") from error


def _insert_configs(
    database: sqlite3.Connection, topic_id: UUID, configs: Mapping[str, str]
) -> None:
    database.executemany(
        "INSERT INTO topic_configs VALUES (?, ?, ?)",
        [(topic_id.bytes, name, value) for name, value in configs.items()],
    )


def _forget_deleted(database: sqlite3.Connection, gone: Iterable[UUID]) -> None:
    database.executemany(
        "DELETE FROM deleted_topics WHERE id = ?", [(topic_id.bytes,) for topic_id in gone]
    )


def _new_id() -> str:
    """Return a fresh id in Kafka's form: 16 random bytes in 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]
