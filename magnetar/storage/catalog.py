"""The catalog: the broker's state besides its logs, in a few tables of SQLite or PostgreSQL.

Owns topics, configs, client quotas, users, ACLs, delegation tokens, the producer id counter, the
cluster's id and the count of the broker's starts. `catalog_nodes` has the nodes and what they lead;
`catalog_changes` counts the changes, and remembers what each was about.

One transaction per admin change, durable when the call returns (`sqlite_database`,
`postgres_database`). Calls run on the event loop: they are rare and take a fraction of a
millisecond, or the time of one sync. Topics are made, grown and deleted in a thread, since clients
may ask for thousands; calls wait for one another. A failing or full disk is a CatalogFailure, which
stops the broker. A request is answered with CatalogUnavailable where a server of PostgreSQL does
not answer within two seconds, or where another node holds the lock of SQLite for too long.

Nodes of one machine or one cluster share a catalog: each has it open, and the database's lock
orders what they change.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from logstore.disk.durability import Durability
from magnetar.storage import differences
from magnetar.storage.catalog_changes import CatalogChanges
from magnetar.storage.catalog_nodes import CatalogNodes
from magnetar.storage.catalog_rows import (
    ACL_COLUMNS,
    ADD_ACL,
    CLIENT_QUOTAS,
    REMOVE_ACL,
    RESOURCE_CONFIGS,
    AclRow,
    Change,
    TokenRow,
    TopicRow,
    acl_changes,
    forget_deleted,
    insert_assigned,
    insert_leaders,
    insert_topics,
    next_epoch,
    quota_changes,
    read_topics,
    these,
    value_rows,
)
from magnetar.storage.database import Database
from magnetar.storage.differences import in_rows, write_difference
from magnetar.storage.replicas import Replicas
from magnetar.storage.sqlite_database import SqliteDatabase
from wire.types import uuid_text


class NameTaken(Exception):
    """Another node has stored a topic of that name first."""


class Catalog:
    """One open catalog. Raises CatalogFailure and CatalogUnavailable from every method."""

    def __init__(
        self,
        directory: Path | None,
        durability: Durability = Durability.FSYNC,
        *,
        cluster_id: str | None = None,
        is_shared: bool = False,
        database: Database | None = None,
    ) -> None:
        """Open or create the catalog in `directory`, or in memory: for None, or memory durability.

        A new catalog takes `cluster_id`, or a random one. `is_shared`: other nodes have it open.
        `database`: what keeps it instead of a file.
        """
        self._database = database or SqliteDatabase(directory, durability)
        self._database.open(cluster_id or uuid_text(uuid.uuid4()))
        self.changes = CatalogChanges(self._database, is_shared=is_shared)
        self.nodes = CatalogNodes(self._database, self.changes)

    @property
    def database(self) -> Database:
        """What keeps it, for what has calls of its own: `magnetar.storage.history`."""
        return self._database

    def close(self) -> None:
        """Close; everything is durable already."""
        self._database.close()

    def topics(self, topic_ids: Sequence[UUID] | None = None) -> list[TopicRow]:
        """Return every topic, or those of these ids (one at least), in the order of names."""
        with self._database.snapshot("read topics") as database:
            return read_topics(database, topic_ids)

    def topic(self, topic_id: UUID) -> TopicRow | None:
        """Return the topic of that id, if there is one."""
        return next(iter(self.topics([topic_id])), None)

    def add_topic(self, topic: TopicRow) -> None:
        """Store a topic whose id no other topic has. Raises NameTaken."""
        if self.add_topics([topic]):
            raise NameTaken(topic.name)

    def add_topics(self, topics: Sequence[TopicRow]) -> set[str]:
        """Store topics as `add_topic`, by one transaction; return those of their names that are
        taken. The other topics are stored."""
        taken: set[str] = set()
        change = self.changes.make("add topics", *(Change("topic", each.id.hex) for each in topics))
        with suppress(NameTaken), change as database:
            taken = insert_topics(database, topics)
            if len(taken) == len(topics):
                # That is no change, which all nodes would have to read.
                raise NameTaken
        return taken

    def grow_topic(
        self,
        topic_id: UUID,
        known_count: int,
        partition_count: int,
        leaders: Sequence[int] = (),
        assigned: Mapping[int, Replicas] | None = None,
    ) -> TopicRow | None:
        """Give a topic of `known_count` partitions more; return it as it is stored now.

        `leaders` are the nodes of the new ones, `assigned` their replicas. None: it has another
        number of partitions, or is gone, and nothing has happened.
        """
        with self.changes.make("set partition count", Change("topic", topic_id.hex)) as database:
            grown = database.execute(
                "UPDATE topics SET partition_count = ? WHERE id = ? AND partition_count = ?",
                (partition_count, topic_id.bytes, known_count),
            )
            if not grown.rowcount:
                return None
            insert_leaders(database, topic_id, known_count, leaders)
            insert_assigned(database, topic_id, assigned or {})
        return self.topic(topic_id)

    def assign_replicas(self, topic_id: UUID, assigned: Mapping[int, Replicas]) -> None:
        """Give partitions of a topic these replicas. A topic that is gone is left alone."""
        with self.changes.make("assign replicas", Change("topic", topic_id.hex)) as database:
            if database.execute("SELECT 1 FROM topics WHERE id = ?", (topic_id.bytes,)).fetchone():
                insert_assigned(database, topic_id, assigned)

    def set_topic_configs(self, topic_id: UUID, changes: Mapping[str, str | None]) -> bool:
        """Set settings of a topic's own, and remove those that are None.

        Returns False if the topic is gone; then nothing was changed.
        """
        of = (topic_id.bytes,)
        with self.changes.make("set topic configs", Change("topic", topic_id.hex)) as database:
            if not database.execute("SELECT 1 FROM topics WHERE id = ?", of).fetchone():
                return False
            write_difference(database, differences.TOPIC_CONFIGS, of, in_rows(changes))
        return True

    def resource_configs(self, *only: tuple[int, str]) -> dict[tuple[int, str], dict[str, str]]:
        """Return the configs by type (KIP-226's codes) and name, but of topics; or of these
        only."""
        with self._database.statements("read configs") as database:
            configs: dict[tuple[int, str], dict[str, str]] = {}
            for resource_type, resource_name, name, value in database.execute(
                *these(RESOURCE_CONFIGS, "resource_type, resource_name", only)
            ):
                configs.setdefault((resource_type, resource_name), {})[name] = value
            return configs

    def set_resource_configs(
        self, resource_type: int, resource_name: str, changes: Mapping[str, str | None]
    ) -> None:
        """Set configs of one resource, which is not a topic, and remove those that are None."""
        of = (resource_type, resource_name)
        changed = Change("configs", f"{resource_type}:{resource_name}")
        with self.changes.make("set configs", changed) as database:
            write_difference(database, differences.RESOURCE_CONFIGS, of, in_rows(changes))

    def client_quotas(self, *entities: str) -> dict[str, dict[str, float]]:
        """Return the quotas by entity, or of these only. The caller chooses an entity's form."""
        keys = [(entity,) for entity in entities]
        with self._database.statements("read quotas") as database:
            quotas: dict[str, dict[str, float]] = {}
            for entity, name, value in database.execute(*these(CLIENT_QUOTAS, "entity", keys)):
                quotas.setdefault(entity, {})[name] = value
            return quotas

    def set_client_quotas(self, quotas: Mapping[str, Mapping[str, float | None]]) -> None:
        """Set quotas of these entities, and remove those that are None."""
        with self.changes.make("set quotas", *quota_changes(quotas)) as database:
            for entity, changes in quotas.items():
                write_difference(database, differences.CLIENT_QUOTAS, (entity,), in_rows(changes))

    def secret(self) -> bytes:
        """Return the 32 random bytes that the catalog got when it was created."""
        with self._database.statements("read the secret") as database:
            return bytes(database.execute("SELECT secret FROM cluster").fetchone()[0])

    def scram_credentials(self, *users: str) -> list[tuple[str, str, bytes, int, bytes, bytes]]:
        """Return user, mechanism, salt, iterations, StoredKey and ServerKey of each credential, or
        of those of these users."""
        with self._database.statements("read SCRAM credentials") as database:
            keys = [(user,) for user in users]
            found = these("SELECT * FROM scram_credentials", '"user"', keys)
            return database.execute(*found).fetchall()

    def set_scram_credentials(
        self, credentials: Mapping[str, Mapping[str, tuple[bytes, int, bytes, bytes] | None]]
    ) -> None:
        """Set credentials of these users by mechanism, and remove those that are None."""
        changed = [Change("scram", user) for user in credentials]
        with self.changes.make("set SCRAM credentials", *changed) as database:
            for user, changes in credentials.items():
                write_difference(database, differences.SCRAM_CREDENTIALS, (user,), changes)

    def acls(self, *only: AclRow) -> list[AclRow]:
        """Return every access control list; or those of `only` that are there."""
        with self._database.statements("read ACLs") as database:
            return database.execute(*these("SELECT * FROM acls", ACL_COLUMNS, only)).fetchall()

    def add_acls(self, acls: Collection[AclRow]) -> None:
        """Add access control lists."""
        with self.changes.make("add ACLs", *acl_changes(acls)) as database:
            database.executemany(ADD_ACL, acls)

    def remove_acls(self, acls: Collection[AclRow]) -> None:
        """Remove access control lists."""
        with self.changes.make("remove ACLs", *acl_changes(acls)) as database:
            database.executemany(REMOVE_ACL, acls)

    def delegation_tokens(self, *ids: str) -> list[TokenRow]:
        """Return every delegation token, the oldest first; or those of these ids."""
        keys = [(each,) for each in ids]
        with self._database.statements("read delegation tokens") as database:
            found, values = these("SELECT * FROM delegation_tokens", "id", keys)
            return database.execute(found + " ORDER BY issued_ms, id", values).fetchall()

    def add_delegation_token(self, token: TokenRow) -> None:
        """Add a delegation token."""
        with self.changes.make("add a delegation token", Change("tokens", token[0])) as database:
            database.execute(
                "INSERT INTO delegation_tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", token
            )

    def set_token_expiry(self, token_id: str, expires_ms: int) -> bool:
        """Set when a delegation token expires; return whether the token was still there."""
        with self.changes.make("change a delegation token", Change("tokens", token_id)) as database:
            changed = database.execute(
                "UPDATE delegation_tokens SET expires_ms = ? WHERE id = ?", (expires_ms, token_id)
            )
            return bool(changed.rowcount)

    def remove_delegation_tokens(self, ids: Sequence[str]) -> None:
        """Remove the delegation tokens of these ids."""
        # Each is named to the other nodes, which would else read all of them again.
        removed = [Change("tokens", each) for each in ids]
        with self.changes.make("remove delegation tokens", *removed) as database:
            database.executemany(
                "DELETE FROM delegation_tokens WHERE id = ?", [(each,) for each in ids]
            )

    def remove_expired_tokens(self, ids: Sequence[str], now_ms: int) -> list[str]:
        """Remove the tokens of these ids that are over, and return their ids. Another node may have
        renewed one."""
        # All nodes look at the same moments, and most find that another one has removed them: that
        # is no change, which all would have to read.
        left = [row[0] for row in self.delegation_tokens(*ids) if row[7] < now_ms] if ids else []
        if not left:
            return []
        changes = [Change("tokens", each) for each in left]
        with self.changes.make("remove expired tokens", *changes) as database:
            removed = database.execute(
                "DELETE FROM delegation_tokens WHERE expires_ms < ? AND (id)"  # noqa: S608  # marks
                f" IN (VALUES {value_rows(1, len(left))}) RETURNING id",
                (now_ms, *left),
            )
            return [token_id for (token_id,) in removed.fetchall()]

    def remove_topics(self, topic_ids: Iterable[UUID], gone: Iterable[UUID] = ()) -> None:
        """Remove topics and their configs, and remember that their files must go.

        Forgets deleted topics whose files are durably `gone`.
        """
        ids = [(topic_id.bytes,) for topic_id in topic_ids]
        changed = (Change("topic", UUID(bytes=topic_id).hex) for (topic_id,) in ids)
        with self.changes.make("remove topics", *changed) as database:
            forget_deleted(database, gone)
            database.executemany("DELETE FROM topics WHERE id = ?", ids)
            database.executemany(
                "INSERT INTO deleted_topics VALUES (?) ON CONFLICT DO NOTHING", ids
            )

    def deleted_topics(self) -> set[UUID]:
        """Return the ids of deleted topics whose files may still be there."""
        with self._database.statements("read deleted topics") as database:
            rows = database.execute("SELECT id FROM deleted_topics")
            return {UUID(bytes=topic_id) for (topic_id,) in rows}

    def forget_deleted_topics(self, gone: Iterable[UUID]) -> None:
        """Forget deleted topics whose files are durably gone."""
        with self.changes.make("forget deleted topics") as database:
            forget_deleted(database, gone)

    def cluster_id(self) -> str:
        """Return the id that the cluster got when its catalog was created."""
        with self._database.statements("read cluster id") as database:
            return str(database.execute("SELECT cluster_id FROM cluster").fetchone()[0])

    def next_broker_epoch(self) -> int:
        """Count one more start and return its number, 0 at the first. Durable before it returns."""
        with self.changes.make("count start") as database:
            return next_epoch(database)

    def raise_broker_epoch(self, at_least: int) -> None:
        """Number the next start above `at_least`: an epoch found in adopted logs."""
        with self.changes.make("raise epoch") as database:
            database.execute(
                "UPDATE cluster SET broker_epoch = ? WHERE broker_epoch < ?", (at_least, at_least)
            )

    def allocate_producer_ids(self, block_size: int) -> int:
        """Reserve `block_size` producer ids and return the first; no id is ever given twice.

        The reservation is durable before it returns.
        """
        with self.changes.make("allocate producer ids") as database:
            row = database.execute(
                "UPDATE cluster SET next_producer_id = next_producer_id + ?"
                " RETURNING next_producer_id",
                (block_size,),
            ).fetchone()
            return int(row[0]) - block_size

    def reserve_producer_ids_below(self, end_producer_id: int) -> None:
        """Give out no id below `end_producer_id` (exclusive): those ids occur in logs."""
        with self.changes.make("reserve producer ids") as database:
            database.execute(
                "UPDATE cluster SET next_producer_id = ? WHERE next_producer_id < ?",
                (end_producer_id, end_producer_id),
            )
