"""The catalog for what changes leaders: by a connection of its own, in the thread `LEADERSHIP`.

Such a transaction may take tenths of a second, or wait for one of another node. A connection serves
one call at a time: on the connection by which the event loop reads the catalog, the loop would wait
as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leadership import Move


class LeadersCatalog:
    """Opens the catalog for its first call. Every call raises as `Catalog`."""

    def __init__(self, open_catalog: Callable[[], Catalog]) -> None:
        self._open_catalog = open_catalog
        self._catalog: Catalog | None = None

    def _opened(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self._open_catalog()
        return self._catalog

    def begin_to_leave(self, node_id: int, incarnation: int) -> None:
        """As `CatalogNodes.begin_to_leave`."""
        self._opened().nodes.begin_to_leave(node_id, incarnation)

    def take_over(self, node_id: int, incarnation: int) -> int | None:
        """As `CatalogNodes.take_over`."""
        return self._opened().nodes.take_over(node_id, incarnation)

    def hand_over(self, node_id: int, incarnation: int, moves: Sequence[Move]) -> bool:
        """As `CatalogNodes.hand_over`."""
        return self._opened().nodes.hand_over(node_id, incarnation, moves)

    def topics(self, topic_ids: Sequence[UUID]) -> list[TopicRow]:
        """As `Catalog.topics`."""
        return self._opened().topics(topic_ids)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._catalog is not None:
            self._catalog.close()
