"""One node of a cluster, as the cluster sees it: it joins, watches the others, takes over, leaves.

This module decides when partitions move; `magnetar.storage.leadership` decides which, and where to.
The other parts of the broker only see topics whose partitions come and go.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Protocol, TypeVar

from logstore.remote.commit_store import CommitsLost
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import Listener
from magnetar.logging import get_logger
from magnetar.runtime.background import Tasks
from magnetar.runtime.catalog_watch import CatalogWatch
from magnetar.runtime.cluster_members import Joining, LookedAt, MemberWatch
from magnetar.runtime.known_history import KnownHistory
from magnetar.runtime.leader_changes import LeaderChanges
from magnetar.runtime.lease_watch import Clients, LeaseWatch
from magnetar.runtime.nodes import Nodes
from magnetar.runtime.remains import Remains
from magnetar.storage.catalog import Catalog, NameTaken
from magnetar.storage.catalog_rows import NodeRow, Presence, TopicRow, topic_names
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.hand_over import LEADERSHIP, HandOver
from magnetar.storage.history import History, halt, read_history
from magnetar.storage.leaders import Placement
from magnetar.storage.leaders_catalog import LeadersCatalog
from magnetar.storage.logs import Logs
from magnetar.storage.topic_counts import BROKER_DEFAULT, counts_of_new, internal_configs
from magnetar.storage.topic_names import INTERNAL
from magnetar.storage.topics import Topics

#: How long the catalog must have answered before a lease that has ended counts: by then all nodes
#: that live have renewed theirs.
STEADY_S = 3.0
#: How long a stop may hand over; the lease is renewed meanwhile. Service managers kill after 60 s.
_HAND_OVER_S = 30.0
#: How long a node that leads nothing any more still answers before it stops. If the node that
#: librdkafka asks has gone, it asks another one only after a second.
_LINGER_S = 0.3
#: When a database that does not let a node begin is asked again.
_ASK_AGAIN_S = 0.5
_T = TypeVar("_T")

_log = get_logger("nodes")


class _AtWork(Protocol):
    """Periodic work of a node."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


class ClusterNode:
    """This node among the others."""

    def __init__(self, joining: Joining, config: BrokerConfig, placement: Placement) -> None:
        self.members = joining.members
        self._joining = joining
        self._known = KnownHistory(joining.directory)
        self._config = config
        self._placement = placement
        self._own_id = placement.own_id
        self._incarnation = -1
        self._catalog: Catalog | None = None
        self._leaders = LeadersCatalog(joining.open_catalog)
        self._changes: CatalogWatch | None = None
        self._watch: MemberWatch | None = None
        self._leader_changes: LeaderChanges | None = None
        #: Held while leaders change here: one change at a time.
        self._leading = asyncio.Lock()
        #: Held while partitions are given away, and before, while the bucket is asked for them.
        self._giving = asyncio.Lock()
        self._tasks: Tasks | None = None
        #: What works for the cluster beside all requests, in the order of its start.
        self._at_work: list[_AtWork] = []
        self._lease_watch: LeaseWatch | None = None
        self._logs: Logs | None = None
        #: Whether `join` waits for the catalog: the node has begun nothing yet.
        self.is_waiting = False
        #: Whether the log has said these things already.
        self._is_left_over_logged = False
        self._is_bucket_away_logged = False
        #: Why leaders could not be changed at the last attempt; empty: they could.
        self._unchanged_reason = ""
        #: The nodes that lived at the last look, each with its incarnation.
        self._seen: set[tuple[int, int]] = set()
        #: Those of them that have started, and may not have their share yet: they may lead too
        #: little, or too much. This node is one at its first look: if it starts last, it may lead
        #: partitions that belong to the share of a node that started before it.
        self._joined: set[tuple[int, int]] = set()
        #: The version of the catalog, the heirs, and those that joined, when only other nodes had
        #: anything to give. Their hand-overs change the catalog.
        self._waits_for_others: tuple[object, ...] | None = None

    async def join(self, catalog: Catalog, listeners: Sequence[Listener]) -> int:
        """Begin a new incarnation, which fences the one before; return its number.

        Waits for a catalog that does not answer. An attempt without an answer may have begun an
        incarnation, which does nothing. Raises ClusterHalted. Raises CommitsLost where the database
        is behind `history.json`.
        """
        self._catalog = catalog
        presence = self._joining.presence(listeners, self._config.broker_rack)
        begin = partial(self._begin, catalog, presence)
        try:
            # On the event loop: a thread would only add to the time of a start.
            self._incarnation, rows = begin()
        except CatalogUnavailable as away:
            self._incarnation, rows = await self._begun_later(begin, away.detail)
        self.members.see(rows)
        self._see()
        self._make_internal(catalog)
        return self._incarnation

    def _begin(self, catalog: Catalog, presence: Presence) -> tuple[int, list[NodeRow]]:
        """Return the number of a new incarnation, and the nodes. Raises as `join`, and
        CatalogUnavailable."""
        try:
            self._known.check(read_history(catalog.database))
        except CommitsLost as lost:
            halt(catalog.database, f"node {self._own_id}: {lost}")
            raise
        return catalog.nodes.start(self._own_id, presence), catalog.nodes.members()

    async def _begun_later(self, begin: Callable[[], _T], reason: str) -> _T:
        """Return what `begin` does, once the catalog answers again."""
        _log.warning("the start waits for the database", reason=reason)
        self.is_waiting = True
        while True:
            await asyncio.sleep(_ASK_AGAIN_S)
            # In a thread, so that the event loop hears of a stop.
            with suppress(CatalogUnavailable):
                begun = await LEADERSHIP.run(begin)
                self.is_waiting = False
                return begun

    async def start(
        self,
        changes: CatalogWatch,
        topics: Topics,
        nodes: Nodes,
        logs: Logs,
        clock: Clock,
        clients: Clients,
        fail: Callable[[BaseException], None],
    ) -> None:
        """Apply what has changed since `join`; watch the other nodes, and this node's own lease.

        `fail` ends a node that is fenced, or whose database has lost something.
        """
        assert self._catalog is not None
        self._changes = changes
        # First: the start of another node is read once, and this node may serve before it has
        # looked at the nodes again.
        changes.on_nodes = partial(self._see_nodes, nodes)
        await changes.catch_up()
        hand_over = HandOver(topics, self._leaders, self._incarnation)
        self._leader_changes = LeaderChanges(topics, self._leaders, nodes, hand_over)
        self._tasks, self._logs = Tasks(fail), logs
        own = (self._own_id, self._incarnation)
        self._watch = MemberWatch(
            self._joining.open_catalog,
            own,
            self.members,
            LookedAt(self._known, logs.proof),
            self._on_seen,
        )
        self._watch.start(fail)
        self._lease_watch = LeaseWatch(logs, clients, fail)
        self._lease_watch.start()

        def is_controller() -> bool:
            return nodes.controller_id == self._own_id

        self._at_work.append(Remains(self._catalog, logs, is_controller, fail))
        if logs.bulk is not None:
            # Imported only where a cluster has a bucket: other clusters start faster.
            from magnetar.runtime.kept_history import KeptHistory
            from magnetar.runtime.offloading import Offloading
            from magnetar.runtime.sweeping import Sweeping

            bulk = logs.bulk
            self._at_work.append(Offloading(topics, bulk, clock, fail))
            where = (bulk.objects, bulk.prefix, self._incarnation)
            read = partial(LEADERSHIP.run, partial(read_history, self._catalog.database))
            kept = KeptHistory(*where, self._known, read, self._proven_history)
            self._at_work.append(Sweeping(bulk.sweep, kept, bulk.pace, clock, is_controller, fail))
        if logs.bulk_store is not None:
            from magnetar.runtime.late_openings import LateOpenings

            self._at_work.append(LateOpenings(topics, logs.bulk_store, fail))
        for part in self._at_work:
            part.start()
        # The other nodes see this one at their next look, and give it its share.

    async def _proven_history(self) -> History:
        """Return the numbers of the database to which commits of this node go."""

        def read() -> History:
            # After a fail-over an old connection may still lead to the old server.
            with closing(self._joining.open_catalog()) as catalog:
                return read_history(catalog.database)

        assert self._logs is not None
        await self._logs.proven()
        return await LEADERSHIP.run(read)

    async def drain(self) -> None:
        """Hand over all partitions of this node.

        If the database does not answer in time, other nodes take the rest over at the end of the
        lease.
        """
        if self._lease_watch is not None:
            self._lease_watch.stop()
        for part in self._at_work:
            await part.stop()
        if self._leader_changes is None or self._tasks is None:
            return
        self._tasks.cancel()
        assert self._logs is not None
        heirs = self.members.heirs()
        try:
            if not await self._logs.in_time(self._hand_over(heirs), _HAND_OVER_S):
                self._log_left_over("the database does not answer")
                return
        except CatalogUnavailable as away:
            self._log_left_over(away.detail)
            return
        if {*heirs} - {self._own_id}:
            # Clients that were just sent away ask some node for the new leaders, perhaps this one.
            await asyncio.sleep(_LINGER_S)

    async def _hand_over(self, heirs: Collection[int]) -> None:
        assert self._leader_changes is not None
        async with self._leading:
            await self._leader_changes.drain(heirs)

    def _log_left_over(self, reason: str) -> None:
        """Say once that other nodes will take over what this one could not hand over."""
        if self._is_left_over_logged or self._leader_changes is None:
            return
        self._is_left_over_logged = True
        _log.warning(
            "a stop does not wait: other nodes take over what is left, at the end of the lease",
            partitions=self._leader_changes.led_count,
            reason=reason,
        )

    async def leave(self) -> None:
        """End the lease of this node. All that it has answered must be durable."""
        assert self._catalog is not None
        if self._watch is not None:
            await self._watch.stop()
        await LEADERSHIP.run(self._leaders.close)
        try:
            self._catalog.nodes.end_lease(self._own_id, self._incarnation)
        except CatalogUnavailable as away:
            self._log_left_over(away.detail)

    def _see(self) -> None:
        self._placement.see_nodes(self.members.live(), self.members.known())

    def _see_nodes(self, nodes: Nodes) -> None:
        """Read the nodes again: one has started, and must hear of the next change, or one was taken
        over, and no answer of it is waited for."""
        assert self._catalog is not None
        self.members.see(self._catalog.nodes.members())
        self._see()
        for row in self.members.dead():
            nodes.give_up(row.node_id)

    async def _on_seen(self, version: int) -> None:
        """Act on a look at the catalog: apply changes, take over, even out."""
        assert self._changes is not None and self._tasks is not None
        assert self._leader_changes is not None and self._watch is not None
        self._see()
        live = self.members.incarnations()
        before, self._seen = self._seen, live
        self._joined = (self._joined | (live - before)) & live
        if before != live:
            _log.info("nodes that live", node_ids=[node_id for node_id, _ in sorted(live)])
        if version != self._changes.version:
            await self._changes.catch_up()
        for row in self.members.dead() if self._watch.steady_s >= STEADY_S else ():
            if row.incarnation >= 0:
                take_over = partial(self._leader_changes.take_over, row.node_id, row.incarnation)
                self._tasks.spawn(self._change_leaders(take_over))
        heirs = self.members.heirs()
        if self._giving.locked():
            return
        found = (self._changes.version, heirs, self._joined)
        if self._joined and found != self._waits_for_others:
            self._tasks.spawn(self._even_out(heirs, {*self._joined}))
        elif self._leader_changes.misplaced(heirs) and not self._leading.locked():
            self._tasks.spawn(self._give(partial(self._leader_changes.prefer, heirs)))

    async def _even_out(self, heirs: list[int], joined: set[tuple[int, int]]) -> None:
        """Give nodes that have joined their share.

        The next look tries again after a failure, and as long as this node has anything to give.
        If only others have, it tries again when the catalog has changed: a node may be unable to
        give a partition for days, since the bucket has lost an object of it.
        """
        assert self._leader_changes is not None and self._changes is not None
        leader_changes, changes = self._leader_changes, self._changes

        async def give() -> None:
            looked_at = (changes.version, heirs, joined)
            excess = await leader_changes.even_out(heirs)
            if not any(excess):
                self._joined -= joined
            self._waits_for_others = None if excess.own else looked_at

        await self._give(give)

    async def _give(self, work: Callable[[], Awaitable[object]]) -> None:
        """Give partitions to other nodes, unless the bucket is away: they could not open them."""
        assert self._logs is not None
        async with self._giving:
            # This node serves them. The next leader would have to wait for the bucket.
            reason = await self._logs.bucket_away()
            if reason and not self._is_bucket_away_logged:
                _log.warning(
                    "no node is given partitions: the bucket has their newest batches",
                    reason=reason,
                )
            self._is_bucket_away_logged = bool(reason)
            if not reason:
                await self._change_leaders(work)

    async def _change_leaders(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do `work`, which changes leaders. If the catalog does not answer, the next look tries
        again. The log says once why leaders cannot be changed, however many looks fail."""
        async with self._leading:
            before, self._unchanged_reason = self._unchanged_reason, ""
            try:
                await work()
            except CatalogUnavailable as away:
                self._unchanged_reason = str(away)
                if self._unchanged_reason != before:
                    _log.warning("the leaders stay as they are", reason=self._unchanged_reason)

    def _make_internal(self, catalog: Catalog) -> None:
        """Create the coordinators' topics: nodes must agree on them from the first request."""
        with catalog.database.statements("read the names of topics") as database:
            known = topic_names(database)
        for name in sorted(INTERNAL - known):
            nodes_max = self._placement.replicas_max
            counts = counts_of_new(name, BROKER_DEFAULT, BROKER_DEFAULT, self._config, nodes_max)
            topic_id, configs = uuid.uuid4(), internal_configs(name, self._config)
            node_ids, _ = self._placement.of_new(topic_id, 0, counts[0])
            leaders = tuple(self._placement.at(node_id) for node_id in node_ids)
            row = TopicRow(topic_id, name, *counts, True, configs, leaders)
            try:
                catalog.add_topic(row)
            except NameTaken:
                _log.debug("another node has made a topic at the same moment", topic=name)
