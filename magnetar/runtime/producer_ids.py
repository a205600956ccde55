"""Producer ids at work: blocks from the catalog, which stores each before its first id is used."""

from __future__ import annotations

from typing import Protocol

from coordinator.producer_ids import BLOCK_SIZE
from wire.records.header import NO_PRODUCER_ID


class BlockSource(Protocol):
    """Where blocks of producer ids come from: the catalog."""

    def allocate_producer_ids(self, block_size: int) -> int:
        """Return the first id of a block that was never given, durably. Blocks."""
        ...

    def reserve_producer_ids_below(self, end_producer_id: int) -> None:
        """Give none below `end_producer_id` any more, durably. Blocks."""
        ...


class ProducerIds:
    """Ids that no client was ever given."""

    def __init__(self, source: BlockSource) -> None:
        self._source = source
        #: The ids from the one to the other (exclusive) are persisted as given, and not yet used.
        self._next_producer_id = self._end_producer_id = 0
        self._highest_found = NO_PRODUCER_ID

    def stay_above(self, producer_id: int) -> None:
        """Never give `producer_id` or one below: it was found in a log, maybe another broker's."""
        self._highest_found = max(self._highest_found, producer_id)

    def peek(self) -> int:
        """Return the id that `take` would return, without using it up."""
        if self._next_producer_id == self._end_producer_id:
            first = self._source.allocate_producer_ids(BLOCK_SIZE)
            if first <= self._highest_found:
                self._source.reserve_producer_ids_below(self._highest_found + 1)
                first = self._source.allocate_producer_ids(BLOCK_SIZE)
            assert first >= self._end_producer_id, f"block {first} was handed out before"
            self._next_producer_id, self._end_producer_id = first, first + BLOCK_SIZE
        return self._next_producer_id

    def take(self) -> int:
        """Return an id and use it up."""
        producer_id = self.peek()
        self._next_producer_id += 1
        return producer_id
