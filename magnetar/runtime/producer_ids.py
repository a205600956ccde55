"""Producer ids at work: blocks from the catalog, which stores each before its first id is used."""

from __future__ import annotations

from coordinator.producer_ids import BLOCK_SIZE, ProducerIdBlock
from coordinator.transactions.metadata import NO_PRODUCER_ID
from magnetar.storage.catalog import Catalog


class ProducerIds:
    """Ids that nobody was ever given."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._block = ProducerIdBlock()
        self._highest_found = NO_PRODUCER_ID

    def stay_above(self, producer_id: int) -> None:
        """Never give `producer_id` or one below: it was found in a log, maybe another broker's."""
        self._highest_found = max(self._highest_found, producer_id)

    def peek(self) -> int:
        """Return the id that `take` would return, without using it up."""
        self._refill()
        return self._block.peek()

    def take(self) -> int:
        """Return an id and use it up."""
        self._refill()
        return self._block.take()

    def _refill(self) -> None:
        if not self._block.is_used_up:
            return
        first = self._catalog.allocate_producer_ids(BLOCK_SIZE)
        if first <= self._highest_found:
            self._catalog.reserve_producer_ids_below(self._highest_found + 1)
            first = self._catalog.allocate_producer_ids(BLOCK_SIZE)
        self._block.refill(first)
