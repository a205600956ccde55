"""The changes of the catalog: each one transaction, counted, and remembered for other nodes.

Owns how a change is made, and what nodes that share the catalog can still learn of earlier ones. A
node that has missed more than is remembered reads everything again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.storage.catalog_rows import Change, insert_changes, read_node_epochs
from magnetar.storage.database import Database, Queries

#: Changes that are remembered for nodes that have not read them yet.
_CHANGES_KEPT = 10_000
#: A node that has missed changes of more things reads all again, too: one change may be about
#: thousands.
_NAMES_MAX = 20_000


class CatalogChanges:
    """Makes the changes of one open catalog. Raises as `magnetar.storage.catalog.Catalog`."""

    def __init__(self, database: Database, *, is_shared: bool) -> None:
        """`is_shared`: other nodes have the catalog open, and read what has changed."""
        self._database = database
        self._is_shared = is_shared

    @contextmanager
    def make(self, doing: str, *changes: Change) -> Iterator[Queries]:
        """Run the block in one transaction, and count it as a change.

        Other nodes find `changes`, where there are any.
        """
        with self._database.transaction(doing) as database:
            yield database
            (version,) = database.execute(
                "UPDATE cluster SET change_count = change_count + 1 RETURNING change_count"
            ).fetchone()
            if self._is_shared:
                insert_changes(database, version, changes)
                database.execute(
                    "DELETE FROM changes WHERE version <= ?", (version - _CHANGES_KEPT,)
                )

    def count(self) -> int:
        """Return how many changes were made since the catalog was created."""
        with self._database.statements("read the count of changes") as database:
            return int(database.execute("SELECT change_count FROM cluster").fetchone()[0])

    def since(self, version: int) -> tuple[int, list[Change] | None, dict[int, int]]:
        """Return the number of the last change, what changed after `version`, and the number of the
        last start of each node.

        None: too much, everything may have changed. It may, too, where the last number is below
        `version`: PostgreSQL has shown a change that its standby lacked, and has failed over.
        """
        with self._database.snapshot("read changes") as database:
            (last,) = database.execute("SELECT change_count FROM cluster").fetchone()
            epochs = read_node_epochs(database)
            if not version <= last <= version + _CHANGES_KEPT:
                return last, None, epochs
            found = "SELECT DISTINCT kind, name FROM changes WHERE version > ? LIMIT ?"
            rows = database.execute(found, (version, _NAMES_MAX + 1)).fetchall()
            changes = [Change(*row) for row in rows] if len(rows) <= _NAMES_MAX else None
            return last, changes, epochs
