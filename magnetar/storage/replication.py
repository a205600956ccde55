"""How the PostgreSQL of a cluster is replicated: whether a fail-over can lose what it acknowledged.

Source: PostgreSQL, "The Cumulative Statistics System", pg_stat_replication. Backups under way and
subscribers of logical replication are there too, and no standbys.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.storage.database import Database

_STANDBYS = """
SELECT count(*), count(*) FILTER (WHERE sync_state IS NULL OR sync_state IN ('sync', 'quorum'))
FROM pg_stat_replication AS standby
WHERE state IS DISTINCT FROM 'backup' AND NOT EXISTS (
    SELECT 1 FROM pg_replication_slots
    WHERE active_pid = standby.pid AND slot_type = 'logical'
)"""


class Replication(NamedTuple):
    """The standbys of a server that are connected to it."""

    standbys: int
    #: As far as the role may know: one without pg_monitor sees no states.
    synchronous: int
    #: The setting synchronous_standby_names.
    names: str

    @property
    def may_lose(self) -> bool:
        """Whether there are standbys, and none that commits wait for.

        A server without any is as durable as its disk.
        """
        return self.standbys > 0 and not (self.names and self.synchronous)


def read_replication(database: Database) -> Replication:
    """Return how the server is replicated. Raises CatalogFailure, CatalogUnavailable."""
    with database.statements("look at the standbys") as statements:
        standbys, synchronous = statements.execute(_STANDBYS).fetchone()
        names = "SELECT current_setting('synchronous_standby_names')"
        return Replication(standbys, synchronous, statements.execute(names).fetchone()[0])
