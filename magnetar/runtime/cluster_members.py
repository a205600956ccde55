"""The nodes of a cluster by their rows in the catalog: which of them live, and their addresses.

Owns what this node knows of the others, and the look at the catalog that refreshes it. The look is
taken twice a second, in a thread and on a connection of its own, so that a PostgreSQL that hangs
does not stop the event loop. It also finds changes of other nodes whose message was lost, and nodes
that have died. Not here: the members of groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from logstore.disk.pools import Pool
from logstore.remote.commit_store import CommitsLost, NodeFenced
from magnetar import __version__
from magnetar.config.listeners import Listener
from magnetar.logging import get_logger
from magnetar.runtime.background import Background
from magnetar.runtime.known_history import KnownHistory
from magnetar.runtime.nodes import Address
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import PEERS, PEERS_IN_TLS, NodeRow, Presence
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.history import History, read_clock_s, read_history

#: The time between two looks: a dead host is noticed so long after its lease at most. A look takes
#: 2 ms of CPU.
LOOK_AGAIN_S = 0.5
#: How far the database's clock may move from one look to the next before it counts as set.
_CLOCK_S = 1.0
#: A pool of its own: a look that waits for PostgreSQL must hold up nothing else.
_LOOKS = Pool("members", 1)

_log = get_logger("nodes")


def _now_s() -> float:
    """Return the event loop's time: in a simulation it is not that of the machine."""
    return asyncio.get_running_loop().time()


class ClusterMembers:
    """The nodes, as the catalog said at the last look."""

    def __init__(self) -> None:
        self._rows: dict[int, NodeRow] = {}

    def see(self, rows: Iterable[NodeRow]) -> None:
        """Replace everything by what the catalog says now."""
        self._rows = {row.node_id: row for row in rows}

    def live(self) -> list[int]:
        """Return the nodes whose leases are good, in order."""
        return [row.node_id for row in self._rows.values() if row.is_live]

    def incarnations(self) -> set[tuple[int, int]]:
        """Return the nodes whose leases are good, each with its incarnation."""
        return {(row.node_id, row.incarnation) for row in self._rows.values() if row.is_live}

    def heirs(self) -> list[int]:
        """Return the nodes that may be given something to lead, in order."""
        return [row.node_id for row in self._rows.values() if row.is_live and not row.is_leaving]

    def known(self) -> list[int]:
        """Return the nodes that ever started, in order."""
        return [row.node_id for row in self._rows.values() if row.incarnation >= 0]

    def dead(self) -> list[NodeRow]:
        """Return the nodes without a lease, also those that never started."""
        return [row for row in self._rows.values() if not row.is_live]

    def reached(self, listener: str) -> list[Address]:
        """Return where clients of a listener of that name reach each node that lives."""
        return [
            (row.node_id, *row.presence.endpoints[listener], row.presence.rack or None)
            for row in self._rows.values()
            if row.is_live and listener in row.presence.endpoints
        ]

    def peer_address(self, node_id: int) -> tuple[str, int] | None:
        """Return where a node listens to its peers."""
        row = self._rows.get(node_id)
        return None if row is None else row.presence.endpoints.get(PEERS)


class Joining(NamedTuple):
    """What a broker needs to be a node of a cluster."""

    members: ClusterMembers
    #: The address at which peers reach this node.
    peers: tuple[str, int]
    #: The place (host and data directory) that has this node's id.
    owner: str
    #: Opens one more connection to the catalog: for the looks, and for what changes leaders.
    open_catalog: Callable[[], Catalog]
    #: Where the node remembers what it knows of the database; None: nowhere.
    directory: Path | None = None
    #: Whether peers speak TLS.
    has_tls: bool = False

    def presence(self, listeners: Sequence[Listener], rack: str | None) -> Presence:
        """Return what this node says of itself."""
        endpoints = {one.name: (one.advertised_host, one.advertised_port) for one in listeners}
        endpoints[PEERS] = self.peers
        if self.has_tls:
            endpoints[PEERS_IN_TLS] = self.peers
        return Presence(self.owner, endpoints, rack or "", __version__)


class LookedAt(NamedTuple):
    """What the looks at the database are compared with."""

    known: KnownHistory
    #: As `Logs.proof`.
    proof: Callable[[], Callable[[], bool | None]]


class MemberWatch:
    """The look at the catalog, twice a second."""

    def __init__(
        self,
        open_catalog: Callable[[], Catalog],
        own: tuple[int, int],
        members: ClusterMembers,
        looked_at: LookedAt,
        on_seen: Callable[[int], Awaitable[None]],
    ) -> None:
        """`own`: the id and incarnation of this node. `on_seen` gets the number of the catalog's
        last change, once `members` has the nodes of that look."""
        self._open_catalog = open_catalog
        self._catalog: Catalog | None = None
        self._node_id, self._incarnation = own
        self._members = members
        self._looked_at = looked_at
        self._on_seen = on_seen
        self._background: Background | None = None
        self._is_away = True
        self._answers_since_s = 0.0
        #: By how much the database's clock is ahead of this node's: at least, and at most.
        self._ahead_s: tuple[float, float] | None = None

    @property
    def steady_s(self) -> float:
        """How long the catalog has answered every look, and its clock has not been set.

        While the catalog was away, nodes that live could not renew their leases. When its clock is
        set, leases of nodes that live seem to have ended until they are renewed.
        """
        return _now_s() - self._answers_since_s

    def start(self, fail: Callable[[BaseException], None]) -> None:
        """Look from now on. `fail` ends a node that is fenced."""
        self._background = Background(fail)
        self._background.start(self._look_periodically())

    async def stop(self) -> None:
        """Look no more."""
        if self._background is not None:
            await self._background.stop()
        # In the pool's one thread: after the look under way, which uses the connection.
        await _LOOKS.run(self._close)

    async def _look_periodically(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _look(self) -> None:
        proof, asked_s = self._looked_at.proof(), _now_s()
        try:
            rows, history, clock_s = await _LOOKS.run(self._read)
            self._note_answer()
            self._note_clock(clock_s - _now_s(), clock_s - asked_s)
            # After a fail-over, commits to the new server prove nothing about what was read before.
            self._compare(history, is_usable=proof() is not None)
            await self._act_on(rows, history.changes)
        except CatalogUnavailable as away:
            if not self._is_away:
                _log.warning("the catalog does not answer; asked again", reason=str(away))
            self._is_away = True

    def _note_answer(self) -> None:
        if self._is_away:
            self._answers_since_s = _now_s()
        self._is_away = False

    def _note_clock(self, least_s: float, most_s: float) -> None:
        """Begin `steady_s` anew if the database's clock was set: all leases may seem to be over."""
        before, self._ahead_s = self._ahead_s, (least_s, most_s)
        if before is None or (least_s <= before[1] + _CLOCK_S and most_s >= before[0] - _CLOCK_S):
            return
        self._answers_since_s = _now_s()
        _log.warning(
            "the database's clock was set, or this machine stood still: leases are waited for",
            ahead_by_s=round(most_s - before[1], 1),
        )

    def _compare(self, history: History, *, is_usable: bool) -> None:
        """Compare the database's numbers with those that are known. Raises CommitsLost.

        `is_usable`: whether these numbers may become known ones.
        """
        known, proof = self._looked_at
        if is_usable:
            known.see(history, proof())
        else:
            known.check(history)

    async def _act_on(self, rows: list[NodeRow], changes: int) -> None:
        """Keep what the look has found, and tell of it, unless this node was fenced.

        Raises CommitsLost, NodeFenced; CatalogUnavailable where the catalog does not answer any
        more.
        """
        self._members.see(rows)
        own = next((row for row in rows if row.node_id == self._node_id), None)
        if own is None or own.incarnation < self._incarnation:
            raise CommitsLost(f"the database has forgotten this start of node {self._node_id}")
        if own.incarnation > self._incarnation:
            raise NodeFenced(f"node {self._node_id} was taken over, or started a second time")
        await self._on_seen(changes)

    def _read(self) -> tuple[list[NodeRow], History, float]:
        """Read the nodes, the database's numbers, and then its clock. In a thread."""
        if self._catalog is None:
            self._catalog = self._open_catalog()
        self._looked_at.known.keep()
        rows, history = self._catalog.nodes.members(), read_history(self._catalog.database)
        return rows, history, read_clock_s(self._catalog.database)

    def _close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
