"""What a change of values by name makes different, and its way into a table of the catalog.

A node changes settings, quotas and credentials from what it has read. Another node may change other
values of the same topic, entity or user at the same moment. So what is written is the difference
alone: values that a change does not touch stay as the other node has left them. If two nodes change
one value, the later change stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from magnetar.storage.database import Queries

V = TypeVar("V")


def difference(known: Mapping[str, V], wanted: Mapping[str, V]) -> dict[str, V | None]:
    """Return what is to be written to make `known` into `wanted`, by name; None: it goes."""
    changes: dict[str, V | None] = {
        name: value for name, value in wanted.items() if known.get(name) != value
    }
    return changes | dict.fromkeys(known.keys() - wanted.keys())


def in_rows(changes: Mapping[str, V | None]) -> dict[str, tuple[V] | None]:
    """Return changes for a table that has one column for a value."""
    return {name: None if value is None else (value,) for name, value in changes.items()}


class Table(NamedTuple):
    """The statements of one table. Both begin with the columns of what changes, and a name."""

    delete: str
    insert: str


TOPIC_CONFIGS = Table(
    "DELETE FROM topic_configs WHERE topic_id = ? AND name = ?",
    "INSERT INTO topic_configs VALUES (?, ?, ?)",
)
RESOURCE_CONFIGS = Table(
    "DELETE FROM resource_configs WHERE resource_type = ? AND resource_name = ? AND name = ?",
    "INSERT INTO resource_configs VALUES (?, ?, ?, ?)",
)
CLIENT_QUOTAS = Table(
    "DELETE FROM client_quotas WHERE entity = ? AND name = ?",
    "INSERT INTO client_quotas VALUES (?, ?, ?)",
)
SCRAM_CREDENTIALS = Table(
    'DELETE FROM scram_credentials WHERE "user" = ? AND mechanism = ?',
    "INSERT INTO scram_credentials VALUES (?, ?, ?, ?, ?, ?)",
)


def write_difference(
    database: Queries,
    table: Table,
    of: Sequence[object],
    changes: Mapping[str, Sequence[Any] | None],
) -> None:
    """Write the changes of the topic, resource, entity or user that `of` names."""
    database.executemany(table.delete, [(*of, name) for name in changes])
    rows = [(*of, name, *row) for name, row in changes.items() if row is not None]
    database.executemany(table.insert, rows)
