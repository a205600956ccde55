"""What the nodes of a simulated cluster share: one database, which has the catalog and the logs,
and in a share of the histories a bucket.

The catalog is SQLite in memory and the store its own simulation; here they are one database, as
PostgreSQL is: one row for each node says which incarnation may write, and until when it has its
lease. Time in the database is the simulation's, which no machine's clock moves.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from random import Random

from logstore.remote.commit_store import OutcomeUnknown
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_changes import CatalogChanges
from magnetar.storage.catalog_nodes import CatalogNodes
from magnetar.storage.catalog_rows import NodeRow, Presence
from magnetar.storage.database import Database
from magnetar.storage.leadership import Move
from magnetar.storage.sqlite_database import SqliteDatabase
from tests.logstore.remote.simulated_store import Mishap, SimulatedDatabase, SimulatedStore
from tests.simulation.world.clock import START_MS
from tests.simulation.world.process import Scheduler
from tests.simulation.world.shared_bucket import SharedBucket

#: How often a question after the last commit is followed by a fail-over, and how soon.
_FAIL_OVER_PROBABILITY = 0.3
_FAIL_OVER_S = 0.001
#: How many clusters have a bucket.
_BUCKET_PROBABILITY = 0.6
#: How much longer than the primary the synchronous standby takes, in one cluster or another.
_SLOW_PROOFS_S = (0.0, 0.0, 0.03, 0.2)
#: From where on logs take turns, and how much has room in one commit; None: no batch is so large.
_TURN_BYTES = (None, (150, 400))


class SharedStorage:
    """The database and the bucket of a cluster, which outlive its nodes."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self._scheduler = scheduler
        has_bucket = random.random() < _BUCKET_PROBABILITY
        self.bucket = SharedBucket(scheduler, random) if has_bucket else None
        self.turn_bytes = random.choice(_TURN_BYTES)
        self._slow_proof_s = random.choice(_SLOW_PROOFS_S)
        self.logs = SimulatedDatabase(self.now_ms)
        self.connection: sqlite3.Connection | None = None
        self._reader: ClusterCatalog | None = None

    def now_ms(self) -> int:
        """Return the time in the database."""
        return START_MS + int(self._scheduler.now_s * 1000)

    def catalog(self) -> ClusterCatalog:
        """Return the catalog, as one more that has it open."""
        return ClusterCatalog(self)

    def read(self) -> ClusterCatalog:
        """Return the catalog, for questions; always the same object."""
        if self._reader is None:
            self._reader = self.catalog()
        return self._reader

    def writes(self) -> int:
        """Return how many rows of the catalog all nodes have written so far."""
        return self.connection.total_changes if self.connection is not None else -1

    def store(self, random: Random, mishap_probability: float) -> SimulatedStore:
        """Return the way of one process to the logs."""
        store = _Store(self.logs, random=random, mishap_probability=mishap_probability)
        store.slow_proof_s = self._slow_proof_s
        return store


class _Store(SimulatedStore):
    """A store that may fail over just after it has shown what no standby has yet.

    A fail-over costs every connection: a node hears of it, whether or not a commit of its is gone.
    """

    #: How many there had been when the connection was made.
    _fail_overs = 0

    async def connect(self) -> None:
        await super().connect()
        self._fail_overs = self._database.fail_overs

    async def prove(self, number: int) -> None:
        fail_overs = self._database.fail_overs
        await super().prove(number)
        if fail_overs != self._database.fail_overs:
            raise OutcomeUnknown(f"a proof of commit {number}: the primary is another one")

    def _mishap(self) -> Mishap:
        if self._fail_overs != self._database.fail_overs:
            self._is_connected = False
        return super()._mishap()

    async def last_commit(self) -> int:
        last = await super().last_commit()
        if self._random is not None and self._random.random() < _FAIL_OVER_PROBABILITY:
            asyncio.get_running_loop().call_later(_FAIL_OVER_S, self._database.fail_over)
        return last


class _OneConnection(SqliteDatabase):
    """Nodes take turns within one process here, so one connection serves all of them."""

    def __init__(self, storage: SharedStorage) -> None:
        self._storage = storage
        super().__init__(None, now_ms=storage.now_ms)

    def _migrate(self, new_cluster_id: str) -> None:
        if self._storage.connection is None:
            self._storage.connection = self._connection
        else:
            self._connection.close()
            self._connection = self._storage.connection
        super()._migrate(new_cluster_id)

    def close(self) -> None:
        """The others have it open still."""


class _Nodes(CatalogNodes):
    """The nodes of a cluster, whose rows are the store's too."""

    def __init__(
        self, database: Database, changes: CatalogChanges, logs: SimulatedDatabase
    ) -> None:
        self._logs = logs
        super().__init__(database, changes)

    def start(self, node_id: int, presence: Presence | None = None) -> int:
        incarnation = super().start(node_id, presence)
        self._logs.start_node(node_id, incarnation)
        return incarnation

    def take_over(self, node_id: int, incarnation: int) -> int | None:
        self._see_leases()
        fenced = super().take_over(node_id, incarnation)
        if fenced is not None:
            self._logs.confirm()
            self._let_row_rule(node_id)
        return fenced

    def hand_over(self, node_id: int, incarnation: int, moves: Sequence[Move]) -> bool:
        self._see_leases()
        self._logs.confirm()
        return super().hand_over(node_id, incarnation, moves)

    def end_lease(self, node_id: int, incarnation: int) -> None:
        self._see_leases()
        super().end_lease(node_id, incarnation)
        self._let_row_rule(node_id)

    def members(self) -> list[NodeRow]:
        self._see_leases()
        return super().members()

    def _see_leases(self) -> None:
        """Write down the leases that commits have renewed: there they are the same row."""
        with self._database.statements("see leases") as database:
            for node_id, node in self._logs.nodes.items():
                database.execute(
                    "UPDATE nodes SET lease_until = max(lease_until, ?), commit_seq = ?"
                    " WHERE node_id = ? AND incarnation = ?",
                    (node.lease_until_ms, node.number, node_id, node.incarnation),
                )

    def _let_row_rule(self, node_id: int) -> None:
        """Let commits find what the catalog's row says of a node. Nothing else may fence them:
        a fault planted in the catalog would have no effect.
        """
        node = self._logs.nodes[node_id]
        with self._database.statements("read a node") as database:
            row = "SELECT incarnation, lease_until FROM nodes WHERE node_id = ?"
            node.incarnation, node.lease_until_ms = database.execute(row, (node_id,)).fetchone()


class ClusterCatalog(Catalog):
    """The catalog of a cluster."""

    def __init__(self, storage: SharedStorage) -> None:
        super().__init__(None, is_shared=True, database=_OneConnection(storage))
        self.nodes = _Nodes(self.database, self.changes, storage.logs)

    def secret(self) -> bytes:
        # SQLite's own chance is no history's: the proofs between nodes are bytes on the network.
        return b"the secret of all simulated nodes"
