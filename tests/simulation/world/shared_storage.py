"""What the nodes of a simulated cluster share: one database, which has the catalog and the logs,
and in a share of the histories a bucket.

The catalog is SQLite in memory and the store its own simulation; here they are one database, as
PostgreSQL is: one row for each node says which incarnation may write, and until when it has its
lease. Time in the database is the simulation's, which no machine's clock moves.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

from logstore.remote.commit_store import OutcomeUnknown
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_changes import CatalogChanges
from magnetar.storage.catalog_nodes import CatalogNodes
from magnetar.storage.catalog_rows import NodeRow
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.sqlite_database import SqliteDatabase
from tests.logstore.remote.simulated_store import (
    Mishap,
    SimulatedDatabase,
    SimulatedStore,
    StoredNode,
)
from tests.simulation.clients.routed import State
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
#: How often a change of the catalog is seen before the standby has it. No take-over is: if it was
#: taken back, two nodes might write to a partition (docs/decisions/0062, limits).
_UNTOLD_PROBABILITY = 0.05
_ALWAYS_TOLD = "take over a node"
#: How long the standby is away then, how often it takes over, and how often proofs look for it.
_STANDBY_AWAY_S = (0.2, 1.0, 2.0)
_TAKES_OVER_PROBABILITY = 0.7
_LOOK_S = 0.02


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
        self._random = random
        #: Whether a change of the catalog may be seen before the standby has it: its wait for the
        #: standby was cancelled, or the primary has started again meanwhile.
        self.is_raging = False
        self._away_until_s = 0.0
        self._takes_over = False

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

    def state(self) -> State:
        """Return what changes whenever the catalog may have changed."""
        writes = self.connection.total_changes if self.connection is not None else -1
        return State(writes, self.logs.fail_overs)

    @property
    def is_standby_away(self) -> bool:
        """Whether the standby answers nothing. When it does again, it may be the primary."""
        if self._scheduler.now_s < self._away_until_s:
            return True
        takes_over, self._takes_over = self._takes_over, False
        if takes_over:
            self.logs.fail_over()
        return False

    def is_told(self, doing: str) -> bool:
        """Return whether a change of the catalog waits for the standby to its end."""
        may_fail = self.is_raging and doing != _ALWAYS_TOLD
        return not (may_fail and self._random.random() < _UNTOLD_PROBABILITY)

    def let_standby_go(self) -> None:
        """Let the standby be away for a while, and take over then, or not."""
        self._away_until_s = self._scheduler.now_s + self._random.choice(_STANDBY_AWAY_S)
        self._takes_over = self._random.random() < _TAKES_OVER_PROBABILITY

    def store(self, random: Random, mishap_probability: float) -> SimulatedStore:
        """Return the way of one process to the logs."""
        store = _Store(self, random, mishap_probability)
        store.slow_proof_s = self._slow_proof_s
        return store


class _Store(SimulatedStore):
    """A store that may fail over just after it has shown what no standby has yet.

    A fail-over costs every connection: a node hears of it, whether or not a commit of its is gone.
    """

    #: How many there had been when the connection was made.
    _fail_overs = 0

    def __init__(self, storage: SharedStorage, random: Random, mishap_probability: float) -> None:
        super().__init__(storage.logs, random=random, mishap_probability=mishap_probability)
        self._storage = storage

    async def connect(self) -> None:
        await super().connect()
        self._fail_overs = self._database.fail_overs

    async def prove(self, number: int) -> None:
        fail_overs = self._database.fail_overs
        while self._storage.is_standby_away:
            await asyncio.sleep(_LOOK_S)
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

    @property
    def _connection(self) -> sqlite3.Connection:
        assert self._storage.connection is not None
        return self._storage.connection

    @_connection.setter
    def _connection(self, opened: sqlite3.Connection) -> None:
        if self._storage.connection is None:
            self._storage.connection = opened
        else:
            opened.close()

    def take_back(self, before: bytes, nodes: dict[int, StoredNode]) -> None:
        """Let the catalog, and the nodes that commits find, be as they were."""
        # A connection of its own: the old one has prepared statements.
        self._storage.connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        self._connection.deserialize(before)
        self._set_up("")
        self._storage.logs.nodes = nodes

    @contextmanager
    def transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        if doing == "migrate":
            with super().transaction(doing) as database:
                yield database
            return
        if self._storage.is_standby_away:
            raise CatalogUnavailable(f"cannot {doing}: the standby does not answer")
        logs = self._storage.logs
        self.write_down()
        is_told = self._storage.is_told(doing)
        before = None if is_told else self._connection.serialize()
        with super().transaction(doing) as database:
            yield database
        if before is None:
            logs.confirm()
        else:
            logs.undone_by(partial(self.take_back, before, logs.copied_nodes()))
            self._storage.let_standby_go()
        # Nothing else may fence commits: a fault planted in the catalog would have no effect.
        rows = "SELECT node_id, incarnation, commit_seq, lease_until FROM nodes"
        logs.set_nodes(self._connection.execute(rows).fetchall())
        if not is_told:
            raise CatalogUnavailable(f"cannot {doing}: the wait for a standby was cancelled")

    def write_down(self) -> None:
        """Write down what commits have changed of nodes: there they are the same rows."""
        with self.statements("see leases") as database:
            for node_id, node in self._storage.logs.nodes.items():
                database.execute(
                    "UPDATE nodes SET lease_until = ?, commit_seq = ?"
                    " WHERE node_id = ? AND incarnation = ?",
                    (node.lease_until_ms, node.number, node_id, node.incarnation),
                )

    def close(self) -> None:
        """The others have it open still."""


class _Nodes(CatalogNodes):
    """The nodes of a cluster, whose rows are the store's too."""

    def __init__(self, database: _OneConnection, changes: CatalogChanges) -> None:
        self._rows = database
        super().__init__(database, changes)

    def members(self) -> list[NodeRow]:
        self._rows.write_down()
        return super().members()


class ClusterCatalog(Catalog):
    """The catalog of a cluster."""

    def __init__(self, storage: SharedStorage) -> None:
        database = _OneConnection(storage)
        super().__init__(None, is_shared=True, database=database)
        self.nodes = _Nodes(database, self.changes)

    def secret(self) -> bytes:
        # SQLite's own chance is no history's: the proofs between nodes are bytes on the network.
        return b"the secret of all simulated nodes"
