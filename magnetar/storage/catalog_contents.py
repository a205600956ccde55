"""All that a catalog says, taken out of one database and put into another.

The tables of SQLite and of PostgreSQL have the same names and columns. What belongs to processes
stays behind: nodes, leaders, changes, the secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from magnetar.storage.database import Database, Queries

#: How each table is read and written, those first that others refer to.
_STATEMENTS = (
    ("SELECT * FROM topics", "INSERT INTO topics VALUES (?, ?, ?, ?, ?)"),
    ("SELECT * FROM topic_configs", "INSERT INTO topic_configs VALUES (?, ?, ?)"),
    ("SELECT * FROM resource_configs", "INSERT INTO resource_configs VALUES (?, ?, ?, ?)"),
    ("SELECT * FROM client_quotas", "INSERT INTO client_quotas VALUES (?, ?, ?)"),
    ("SELECT * FROM scram_credentials", "INSERT INTO scram_credentials VALUES (?, ?, ?, ?, ?, ?)"),
    ("SELECT * FROM acls", "INSERT INTO acls VALUES (?, ?, ?, ?, ?, ?, ?)"),
    (
        "SELECT * FROM delegation_tokens",
        "INSERT INTO delegation_tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    ),
)
#: Rows of one statement: a call of PostgreSQL has two seconds.
_ROWS = 200
#: Where `topics` has the number of replicas.
_FACTOR = 3


class Contents(NamedTuple):
    """What one catalog says."""

    cluster_id: str
    #: The number of the last start.
    epoch: int
    next_producer_id: int
    #: The rows of each table of `_STATEMENTS`.
    tables: Sequence[Sequence[tuple[Any, ...]]]

    def topics(self) -> Iterator[tuple[UUID, str, int]]:
        """Yield id, name and number of partitions of each topic."""
        for topic_id, name, count, *_ in self.tables[0]:
            yield UUID(bytes=bytes(topic_id)), name, count

    def on_one_disk(self, is_left_out: tuple[Any, ...]) -> Contents:
        """Return what a single broker is to have: one replica each, and no config of these first
        columns."""
        topics = [(*row[:_FACTOR], 1, *row[_FACTOR + 1 :]) for row in self.tables[0]]
        configs = [row for row in self.tables[2] if row[: len(is_left_out)] != is_left_out]
        return self._replace(tables=[topics, self.tables[1], configs, *self.tables[3:]])


def read(database: Database) -> Contents:
    """Return what a catalog says."""
    with database.snapshot("read everything") as queries:
        cluster_id, epoch, next_producer_id = queries.execute(
            "SELECT cluster_id, broker_epoch, next_producer_id FROM cluster"
        ).fetchone()
        tables = [
            [tuple(row) for row in queries.execute(reading).fetchall()]
            for reading, _ in _STATEMENTS
        ]
        return Contents(cluster_id, epoch, next_producer_id, tables)


def is_empty(queries: Queries) -> bool:
    """Whether the catalog of a cluster has no topic, and no node has ever started."""
    topics = queries.execute("SELECT count(*) FROM topics").fetchone()
    nodes = queries.execute("SELECT count(*) FROM nodes WHERE incarnation >= 0").fetchone()
    return not topics[0] and not nodes[0]


def announce(queries: Queries, contents: Contents) -> None:
    """Take the topics for deleted ones until `write`: without it, nodes remove their logs."""
    rows = [(topic_id.bytes,) for topic_id, *_ in contents.topics()]
    _insert(queries, "INSERT INTO deleted_topics VALUES (?) ON CONFLICT DO NOTHING", rows)


def write(queries: Queries, contents: Contents) -> None:
    """Put everything into a catalog that has none of it, in the caller's transaction."""
    queries.execute("DELETE FROM deleted_topics")
    for (_, writing), rows in zip(_STATEMENTS, contents.tables, strict=True):
        _insert(queries, writing, rows)
    queries.execute(
        "UPDATE cluster SET cluster_id = ?, broker_epoch = ?, next_producer_id = ?,"
        " change_count = change_count + 1",
        (contents.cluster_id, contents.epoch, contents.next_producer_id),
    )


def lead_by(queries: Queries, contents: Contents, node_id: int) -> None:
    """Let a node lead everything, which has not started yet: by its start, or by the take-over of
    those that have."""
    epoch = contents.epoch + 1
    queries.execute("UPDATE cluster SET broker_epoch = ?", (epoch,))
    queries.execute(
        "INSERT INTO nodes (node_id, incarnation, lease_until) VALUES (?, ?, lease_now())"
        " ON CONFLICT (node_id) DO UPDATE SET incarnation = excluded.incarnation",
        (node_id, epoch),
    )
    rows = [
        (topic_id.bytes, index, node_id, epoch)
        for topic_id, _, count in contents.topics()
        for index in range(count)
    ]
    _insert(queries, "INSERT INTO partition_leaders VALUES (?, ?, ?, ?)", rows)


def _insert(queries: Queries, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Perform a statement for each row, some rows at a time."""
    for first in range(0, len(rows), _ROWS):
        queries.executemany(statement, rows[first : first + _ROWS])
