"""The tables of a cluster's catalog in PostgreSQL, in the schema `magnetar`, as numbered steps.

The names and columns are those of SQLite's (`catalog_schema`). `schema_version` counts the steps
made. The tables of what commits write are `logstore.remote`'s.
"""

from __future__ import annotations

from logstore.remote.postgres_schema import TABLES

SCHEMA = "magnetar"

MIGRATIONS = (
    """
    CREATE TABLE cluster (
        only_row int PRIMARY KEY CHECK (only_row = 1),
        cluster_id text NOT NULL,
        broker_epoch bigint NOT NULL,
        next_producer_id bigint NOT NULL,
        change_count bigint NOT NULL DEFAULT 0,
        secret bytea NOT NULL
    );
    CREATE TABLE topics (
        id bytea PRIMARY KEY,
        name text NOT NULL UNIQUE,
        partition_count int NOT NULL CHECK (partition_count > 0),
        replication_factor int NOT NULL,
        internal int NOT NULL
    );
    CREATE TABLE topic_configs (
        topic_id bytea NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
        name text NOT NULL,
        value text NOT NULL,
        PRIMARY KEY (topic_id, name)
    );
    CREATE TABLE deleted_topics (
        id bytea PRIMARY KEY
    );
    CREATE TABLE resource_configs (
        resource_type int NOT NULL,
        resource_name text NOT NULL,
        name text NOT NULL,
        value text NOT NULL,
        PRIMARY KEY (resource_type, resource_name, name)
    );
    CREATE TABLE client_quotas (
        entity text NOT NULL,
        name text NOT NULL,
        value double precision NOT NULL,
        PRIMARY KEY (entity, name)
    );
    CREATE TABLE scram_credentials (
        "user" text NOT NULL,
        mechanism text NOT NULL,
        salt bytea NOT NULL,
        iterations int NOT NULL,
        stored_key bytea NOT NULL,
        server_key bytea NOT NULL,
        PRIMARY KEY ("user", mechanism)
    );
    CREATE TABLE acls (
        resource int NOT NULL,
        name text NOT NULL,
        pattern int NOT NULL,
        principal text NOT NULL,
        host text NOT NULL,
        operation int NOT NULL,
        permission int NOT NULL,
        PRIMARY KEY (resource, name, pattern, principal, host, operation, permission)
    );
    CREATE TABLE delegation_tokens (
        id text PRIMARY KEY,
        owner_type text NOT NULL,
        owner text NOT NULL,
        requester_type text NOT NULL,
        requester text NOT NULL,
        renewers text NOT NULL,
        issued_ms bigint NOT NULL,
        expires_ms bigint NOT NULL,
        ends_ms bigint NOT NULL
    );
    CREATE TABLE nodes (
        node_id int PRIMARY KEY,
        incarnation bigint NOT NULL,
        commit_seq bigint NOT NULL DEFAULT 0,
        lease_until timestamptz NOT NULL,
        owner text NOT NULL DEFAULT '',
        endpoints text NOT NULL DEFAULT '{}',
        rack text NOT NULL DEFAULT '',
        version text NOT NULL DEFAULT ''
    ) WITH (fillfactor = 10);
    CREATE TABLE partition_leaders (
        topic_id bytea NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
        partition int NOT NULL,
        node_id int NOT NULL,
        leader_epoch int NOT NULL,
        PRIMARY KEY (topic_id, partition)
    );
    CREATE TABLE changes (
        version bigint NOT NULL,
        kind text NOT NULL,
        name text NOT NULL,
        PRIMARY KEY (version, kind, name)
    );
    CREATE FUNCTION lease_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now()';
    CREATE FUNCTION lease_end() RETURNS timestamptz LANGUAGE sql STABLE
        AS 'SELECT now() + interval ''6 s''';
    """,
    TABLES,
    """
    ALTER TABLE cluster
        ADD COLUMN repairs int NOT NULL DEFAULT 0,
        ADD COLUMN loss text NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE nodes ADD COLUMN is_leaving int NOT NULL DEFAULT 0;
    CREATE TABLE assigned_replicas (
        topic_id bytea NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
        partition int NOT NULL,
        node_ids text NOT NULL,
        PRIMARY KEY (topic_id, partition)
    );
    """,
    # By the clock of the moment: a commit that this statement sees may have begun after it.
    """
    CREATE FUNCTION is_leased(lease_until timestamptz) RETURNS boolean LANGUAGE sql VOLATILE AS
        'SELECT lease_until > now() AND lease_until <= clock_timestamp() + interval ''6 s''';
    """,
)
