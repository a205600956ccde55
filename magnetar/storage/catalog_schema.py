"""The tables of the catalog, as numbered steps; `PRAGMA user_version` counts those made.

`nodes` and `partition_leaders` are empty for a broker without workers: it leads everything. In
`changes` nodes that share the catalog find what others have changed; `cluster.change_count` numbers
the changes. `nodes.lease_until` is in milliseconds since 1970 here; PostgreSQL's tables
(`postgres_schema`) have the same names and columns.
"""

from __future__ import annotations

MIGRATIONS = (
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
    """
    CREATE TABLE nodes (
        node_id INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE partition_leaders (
        topic_id BLOB NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
        partition INTEGER NOT NULL,
        node_id INTEGER NOT NULL,
        leader_epoch INTEGER NOT NULL,
        PRIMARY KEY (topic_id, partition)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE changes (
        version INTEGER NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        PRIMARY KEY (version, kind, name)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE nodes RENAME COLUMN epoch TO incarnation;
    ALTER TABLE nodes ADD COLUMN commit_seq INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE nodes ADD COLUMN lease_until INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE nodes ADD COLUMN owner TEXT NOT NULL DEFAULT '';
    ALTER TABLE nodes ADD COLUMN endpoints TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE nodes ADD COLUMN rack TEXT NOT NULL DEFAULT '';
    ALTER TABLE nodes ADD COLUMN version TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE cluster ADD COLUMN repairs INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE cluster ADD COLUMN loss TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE nodes ADD COLUMN is_leaving INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE assigned_replicas (
        topic_id BLOB NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
        partition INTEGER NOT NULL,
        node_ids TEXT NOT NULL,
        PRIMARY KEY (topic_id, partition)
    ) STRICT, WITHOUT ROWID;
    """,
)


def refusal_of_newer(path: str, done: int) -> str | None:
    """Return why a catalog in which `done` steps are made is not opened; None: it may be.

    A newer schema may mean anything: a start or a repair that guessed would damage it.
    """
    if done <= len(MIGRATIONS):
        return None
    return (
        f"{path} was written by a newer magnetar (schema {done}, this one knows"
        f" {len(MIGRATIONS)}). Start that version, or another data directory"
    )
