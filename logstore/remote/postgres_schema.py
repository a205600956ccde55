"""The tables of logs in PostgreSQL. They lie in the schema of the catalog, beside its `nodes`.

A chunk stays where its commit has put it until retention or the cleaner removes it, so there is
little to vacuum. Its bytes are what clients sent, compressed or not, so they are stored as they
are.
"""

from __future__ import annotations

TABLES = """
    CREATE TABLE logs (
        topic_id uuid,
        partition int,
        start_offset bigint NOT NULL,
        PRIMARY KEY (topic_id, partition)
    );
    CREATE TABLE chunks (
        topic_id uuid,
        partition int,
        base_offset bigint,
        end_offset bigint NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (topic_id, partition, base_offset)
    );
    ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTERNAL;
    CREATE TABLE segments (
        topic_id uuid,
        partition int,
        base_offset bigint,
        end_offset bigint NOT NULL,
        size_bytes bigint NOT NULL,
        max_timestamp bigint NOT NULL,
        PRIMARY KEY (topic_id, partition, base_offset)
    );
    CREATE TABLE attachments (
        topic_id uuid,
        partition int,
        name text,
        data bytea NOT NULL,
        PRIMARY KEY (topic_id, partition, name)
    );
    ALTER TABLE attachments ALTER COLUMN data SET STORAGE EXTERNAL;
"""
