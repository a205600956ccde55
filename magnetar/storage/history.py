"""How far the database of a cluster has come, so that a step back shows.

PostgreSQL may fail over to a standby that was behind: what it had acknowledged is gone then, and
nothing says so. But each number here only ever grows, so a database in which one is smaller than
it was has forgotten something. The cluster then halts: the row of `cluster` says what is missing,
and no node serves before `accept_loss`, which an administrator asks for.

What nodes are sure of, and how they remember it: `magnetar.runtime.known_history`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from logstore.disk.files import StorageFailure
from magnetar.storage.database import Database, Queries

#: How much the counters are raised after a loss: more than the numbers that were given out and are
#: forgotten, which cannot be counted.
#: Leader epochs are 32 bits wide, producer ids 64.
_STARTS_SKIPPED = 100_000
_PRODUCER_IDS_SKIPPED = 1_000_000_000


class ClusterHalted(StorageFailure):
    """The database has lost what it had acknowledged: no node serves before an administrator has
    accepted that."""

    def __init__(self, loss: str) -> None:
        super().__init__(
            f"the cluster has halted, because its database has lost what was acknowledged ({loss})."
            " Bring back the server that has it; or go on without, by"
            " `magnetar cluster repair --storage URL --accept-loss`."
        )


class History(NamedTuple):
    """How far a cluster has come, by its database."""

    cluster_id: str
    #: Grows when a loss is accepted. Numbers before and after cannot be compared.
    repairs: int
    #: The last number of the starts of nodes and the moves of partitions.
    starts: int
    changes: int
    next_producer_id: int
    #: By node: its incarnation, and the number of that one's last commit.
    commits: Mapping[int, tuple[int, int]]
    #: What the database is known to have lost; empty as long as it has lost nothing.
    loss: str = ""
    #: What no other database has: an import brings the cluster's id along, and no numbers.
    database: str = ""


def read_history(database: Database) -> History:
    """Return how far the cluster has come. Raises CatalogFailure, CatalogUnavailable."""
    with database.statements("read the history") as statements:
        commits = {
            node_id: (incarnation, number)
            for node_id, incarnation, number in statements.execute(
                "SELECT node_id, incarnation, commit_seq FROM nodes"
            )
        }
        row = statements.execute(
            "SELECT cluster_id, repairs, broker_epoch, change_count, next_producer_id, loss, secret"
            " FROM cluster"
        ).fetchone()
    cluster_id, repairs, starts, changes, next_producer_id, loss, secret = row
    own = blake2b(secret, digest_size=8, person=b"history").hexdigest()
    return History(cluster_id, repairs, starts, changes, next_producer_id, commits, loss, own)


def read_clock_s(database: Database) -> float:
    """Return the time of the clock that leases go by, in seconds since 1970.

    Raises CatalogFailure, CatalogUnavailable.
    """
    with database.statements("read the clock") as statements:
        (now,) = statements.execute("SELECT lease_now()").fetchone()
    return now.timestamp() if isinstance(now, datetime) else float(now) / 1000


def forgotten(known: History, now: History) -> str:
    """Return what a database has forgotten that was as `known` once; empty where nothing is known
    to be missing.
    """
    if (now.cluster_id, now.database) != (known.cluster_id, known.database):
        return ""
    if now.repairs > known.repairs:
        return ""
    return "; ".join(_steps_back(known, now))


def _steps_back(known: History, now: History) -> Iterator[str]:
    if now.repairs < known.repairs:
        yield "it has forgotten that a loss was accepted"
    for node_id, (incarnation, number) in sorted(known.commits.items()):
        has = now.commits.get(node_id, (-1, 0))
        if has[0] < incarnation:
            yield f"it has forgotten start {incarnation} of node {node_id}"
        elif has < (incarnation, number):
            yield f"commit {has[1]} is the last one of node {node_id}, but {number} was there"
    counters = {
        "starts": (known.starts, now.starts),
        "changes of the catalog": (known.changes, now.changes),
        "producer ids": (known.next_producer_id, now.next_producer_id),
    }
    for name, (before, after) in counters.items():
        if after < before:
            yield f"it counts {after} {name}, and had {before}"


def halt(database: Database, loss: str) -> None:
    """Let no node serve any more. The first loss that is told of stays."""
    with database.transaction("halt the cluster") as statements:
        statements.execute("UPDATE cluster SET loss = ? WHERE loss = ''", (loss,))


def refuse_halted(database: Queries) -> None:
    """Raise ClusterHalted if the database has a loss that no administrator has accepted."""
    row: Any = database.execute("SELECT loss FROM cluster").fetchone()
    if row[0]:
        raise ClusterHalted(row[0])


def accept_loss(database: Database) -> str:
    """Let nodes serve again; return what was lost, empty if the cluster had not halted.

    Whatever still runs is fenced. No number is given out twice: starts, which are leader epochs
    too, and producer ids go on far above those that may have been lost.
    """
    with database.transaction("accept the loss") as statements:
        loss, repairs = statements.execute("SELECT loss, repairs FROM cluster").fetchone()
        if loss:
            # In minutes since 1970, not one by one: in two backups, put back one after the other,
            # the next number is the same, and nodes would compare the one with the other.
            repairs = max(repairs + 1, int(time.time() / 60))
            statements.execute(
                "UPDATE cluster SET loss = '', repairs = ?,"
                " broker_epoch = broker_epoch + ?, next_producer_id = next_producer_id + ?",
                (repairs, _STARTS_SKIPPED, _PRODUCER_IDS_SKIPPED),
            )
            statements.execute(
                "UPDATE nodes SET lease_until = lease_now(),"
                " incarnation = (SELECT broker_epoch FROM cluster) WHERE incarnation >= 0"
            )
    return str(loss)
