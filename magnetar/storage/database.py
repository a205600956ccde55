"""The seam between the catalog and its database: SQLite in the data directory, or PostgreSQL.

The catalog writes one SQL text for both, with `?` for values, and text, integers and bytes as they
are. Both know three functions: `lease_now()` is the moment as `nodes.lease_until` has it, by the
one clock of all nodes, `lease_end()` the end of a lease that is given now, and
`is_leased(lease_until)` whether a lease is good. One that ends later than one that is given now is
not: the clock was set back since, and what lives renews it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from wire.error_code import ErrorCode
from wire.errors import KafkaError


class CatalogFailure(OSError):
    """The catalog's disk failed or is full, or its database is no catalog: the broker stops."""


class CatalogUnavailable(KafkaError):
    """The catalog's server does not answer: what was asked may have happened, and can be retried.

    In the data directory: another node holds the catalog for too long, and nothing has happened.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, detail)


class Rows(Protocol):
    """What a statement returned."""

    @property
    def rowcount(self) -> int:
        """How many rows a change has touched."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Queries(Protocol):
    """What runs statements."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        """Run a statement; each `?` is one of the values."""
        ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Run a statement for each row of values."""
        ...


class Database(Protocol):
    """One open database. Every method raises CatalogFailure, and CatalogUnavailable."""

    def open(self, new_cluster_id: str) -> None:
        """Connect and make the tables, or those of them that are missing.

        A new catalog takes the cluster's id.
        """
        ...

    def close(self) -> None:
        """Close; everything is durable already."""
        ...

    def statements(self, doing: str) -> AbstractContextManager[Queries]:
        """Run the statements of the block, each by itself: one change, or a few reads.

        `doing` says in errors what failed.
        """
        ...

    def snapshot(self, doing: str) -> AbstractContextManager[Queries]:
        """Run the queries of the block on one state of the catalog."""
        ...

    def transaction(self, doing: str) -> AbstractContextManager[Queries]:
        """Run the block in one transaction, rolled back on any exception.

        Transactions of all that have the catalog open follow one another.
        """
        ...
