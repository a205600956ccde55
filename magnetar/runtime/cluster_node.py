"""One node of a cluster, as the cluster sees it: it joins, watches the others, takes over, leaves.

The parts of the broker know nothing of it: they see topics whose partitions come and go.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import Listener
from magnetar.logging import get_logger
from magnetar.runtime.catalog_watch import CatalogWatch
from magnetar.runtime.members import Joining, MemberWatch
from magnetar.storage.catalog import Catalog, NameTaken
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leaders import Placement
from magnetar.storage.topic_counts import BROKER_DEFAULT, counts_of_new, internal_configs
from magnetar.storage.topic_names import INTERNAL

_log = get_logger("nodes")


class ClusterNode:
    """This node among the others."""

    def __init__(self, joining: Joining, config: BrokerConfig, placement: Placement) -> None:
        self.members = joining.members
        self._joining = joining
        self._config = config
        self._placement = placement
        self._incarnation = -1
        self._catalog: Catalog | None = None
        self._changes: CatalogWatch | None = None
        self._watch: MemberWatch | None = None

    def join(self, catalog: Catalog, listeners: Sequence[Listener]) -> int:
        """Begin a new incarnation, which fences the one before; return its number."""
        self._catalog = catalog
        presence = self._joining.presence(listeners, self._config.broker_rack)
        self._incarnation = catalog.start_node(self._placement.own_id, presence)
        self._see()
        self._make_internal(catalog)
        self._watch = MemberWatch(
            self._joining.open_catalog,
            (self._placement.own_id, self._incarnation),
            self.members,
            self._on_seen,
        )
        return self._incarnation

    def start(self, changes: CatalogWatch, fail: Callable[[BaseException], None]) -> None:
        """Watch the other nodes from now on."""
        assert self._watch is not None
        self._changes = changes
        self._watch.start(fail)

    async def leave(self) -> None:
        """Say that this node serves no more. Expects that all it has answered is durable."""
        assert self._watch is not None and self._catalog is not None
        await self._watch.stop()
        self._catalog.end_lease(self._placement.own_id, self._incarnation)

    def _see(self) -> None:
        assert self._catalog is not None
        self.members.see(self._catalog.members())
        self._placement.see_live(self.members.live())

    async def _on_seen(self, version: int) -> None:
        before = self._placement.node_ids
        self._placement.see_live(self.members.live())
        if before != self._placement.node_ids:
            _log.info("nodes that live", node_ids=list(self._placement.node_ids))
        if self._changes is not None and version != self._changes.version:
            await self._changes.catch_up()

    def _make_internal(self, catalog: Catalog) -> None:
        """Make the coordinators' topics: nodes must agree on them from the first request."""
        known = {row.name for row in catalog.topics()}
        for name in sorted(INTERNAL - known):
            counts = counts_of_new(name, BROKER_DEFAULT, BROKER_DEFAULT, self._config)
            topic_id, configs = uuid.uuid4(), internal_configs(name, self._config)
            node_ids = self._placement.of_new(topic_id, 0, counts[0])
            leaders = tuple(self._placement.at(node_id) for node_id in node_ids)
            row = TopicRow(topic_id, name, *counts, True, configs, leaders)
            try:
                catalog.add_topic(row)
            except NameTaken:
                _log.info("another node has made a topic at the same moment", topic=name)
