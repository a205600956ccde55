"""The nodes of the catalog: their ids, starts and leases, and which partitions each leads.

A node that has others beside it has an *incarnation*, the number of its last start. What it changes
names its incarnation, and has no effect once the node was taken over or has started again. The
rules of that are `leadership`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from magnetar.storage import leadership
from magnetar.storage.catalog_changes import CatalogChanges
from magnetar.storage.catalog_rows import (
    Change,
    NodeRow,
    Presence,
    insert_leaders,
    insert_start,
    next_epoch,
    node_of,
    read_node_epochs,
    replace_nodes,
)
from magnetar.storage.database import Database
from magnetar.storage.history import refuse_halted
from magnetar.storage.leadership import Move


class IdInUse(Exception):
    """A node of another place has the id, and a lease."""

    def __init__(self, node_id: int, owner: str) -> None:
        """`owner` is the host and the data directory of the other place."""
        super().__init__(f"node {node_id} lives at another place, {owner}")


class CatalogNodes:
    """The nodes of one open catalog. Raises as `magnetar.storage.catalog.Catalog`."""

    def __init__(self, database: Database, changes: CatalogChanges) -> None:
        self._database = database
        self._changes = changes
        #: The nodes that lead anything, when so many changes had been made: for take-overs.
        self._leading: tuple[int, Collection[int]] = (-1, ())

    def start(self, node_id: int, presence: Presence | None = None) -> int:
        """Count one more start, of a node that has others beside it; return its number.

        The number is the node's incarnation, and the leader epoch of all partitions that it leads.
        From now on commits of earlier incarnations have no effect, and the node has a lease.
        `presence`: where the other nodes find it; None: they know, or are not to know.
        """
        with self._changes.make("start node", Change("node", str(node_id))) as database:
            refuse_halted(database)
            epoch = next_epoch(database)
            insert_start(database, node_id, epoch, presence or Presence("", {}, "", ""))
            return epoch

    def claim(self, owner: str, node_ids: Iterable[int]) -> None:
        """Give these ids to a place. Raises IdInUse if another place has one, with a lease."""
        with self._database.transaction("claim node ids") as database:
            for node_id in node_ids:
                # A new id is the place's for as long as a lease, within which its node starts.
                claimed = database.execute(
                    "INSERT INTO nodes (node_id, incarnation, lease_until, owner)"
                    " VALUES (?, -1, lease_end(), ?) ON CONFLICT (node_id) DO UPDATE"
                    " SET owner = excluded.owner"
                    " WHERE nodes.owner = excluded.owner OR NOT is_leased(nodes.lease_until)",
                    (node_id, owner),
                )
                if not claimed.rowcount:
                    held = "SELECT owner FROM nodes WHERE node_id = ?"
                    raise IdInUse(node_id, *database.execute(held, (node_id,)).fetchone())

    def begin_to_leave(self, node_id: int, incarnation: int) -> None:
        """From now on no other node gives this incarnation a partition to lead."""
        with self._changes.make("begin to leave", Change("node", str(node_id))) as database:
            database.execute(
                "UPDATE nodes SET is_leaving = 1 WHERE node_id = ? AND incarnation = ?",
                (node_id, incarnation),
            )

    def end_lease(self, node_id: int, incarnation: int) -> None:
        """Let the others know that this incarnation serves no more."""
        with self._changes.make("end a lease", Change("node", str(node_id))) as database:
            database.execute(
                "UPDATE nodes SET lease_until = lease_now() WHERE node_id = ? AND incarnation = ?",
                (node_id, incarnation),
            )

    def members(self) -> list[NodeRow]:
        """Return every node that has ever started, in the order of ids."""
        with self._database.statements("read nodes") as database:
            rows = database.execute(
                "SELECT node_id, incarnation, incarnation >= 0 AND is_leased(lease_until),"
                " owner, endpoints, rack, version, is_leaving FROM nodes ORDER BY node_id"
            ).fetchall()
        return [node_of(row) for row in rows]

    def led_counts(self) -> dict[int, int]:
        """Return how many partitions each node leads, of those that lead any."""
        with self._database.statements("count partitions") as database:
            rows = database.execute(
                "SELECT node_id, count(*) FROM partition_leaders GROUP BY node_id"
            )
            return dict(rows.fetchall())

    def epochs(self) -> dict[int, int]:
        """Return the number of the last start of each node."""
        with self._database.statements("read nodes") as database:
            return read_node_epochs(database)

    def place(self, node_ids: Sequence[int], leaders: Mapping[UUID, Sequence[int]]) -> None:
        """Store the nodes and the leaders of every partition; for a single node, none of either."""
        with self._changes.make("place partitions") as database:
            replace_nodes(database, node_ids)
            for topic_id, nodes in leaders.items():
                insert_leaders(database, topic_id, 0, nodes)

    def take_over(self, node_id: int, incarnation: int) -> int | None:
        """As `magnetar.storage.leadership.take_over`. None where that raises NotTaken, and for a
        node that leads nothing: nothing has changed then."""
        # A node that is gone for good is looked at all the time, and that is no change.
        changes = self._changes.count()
        if changes != self._leading[0]:
            self._leading = (changes, {*self.led_counts()})
        if node_id not in self._leading[1]:
            return None
        change = self._changes.make("take over a node", Change("node", str(node_id)))
        with suppress(leadership.NotTaken), change as database:
            return leadership.take_over(database, node_id, incarnation)
        return None

    def hand_over(self, node_id: int, incarnation: int, moves: Sequence[Move]) -> bool:
        """As `magnetar.storage.leadership.hand_over`."""
        with self._changes.make("hand over partitions") as database:
            return leadership.hand_over(database, node_id, incarnation, moves)
