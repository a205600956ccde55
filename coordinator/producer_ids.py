"""Producer ids, handed out from blocks that are persisted before their first id is used.

A crash loses the rest of a block and never repeats an id. The catalog persists a block; taking an
id and asking for the next block is here. Source: KIP-730 (blocks of 1000).
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_SIZE = 1000
#: No broker ever gives out so many ids. An id above this that is found in a log was made up by a
#: producer, which brokers believe. It need not be kept from being given out.
PRODUCER_IDS_END = 2**62


@dataclass(slots=True)
class ProducerIdBlock:
    """The ids [next_producer_id, end_producer_id), persisted as handed out and not yet used."""

    next_producer_id: int = 0
    end_producer_id: int = 0

    @property
    def is_used_up(self) -> bool:
        """Whether the next block has to be persisted before another id can be taken."""
        return self.next_producer_id >= self.end_producer_id

    def refill(self, first_producer_id: int, size: int = BLOCK_SIZE) -> None:
        """Continue with [first_producer_id, first_producer_id + size), which must lie above."""
        if first_producer_id < self.end_producer_id:
            raise AssertionError(f"producer id block {first_producer_id} was handed out before")
        self.next_producer_id = first_producer_id
        self.end_producer_id = first_producer_id + size

    def peek(self) -> int:
        """Return the id that `take` would return, without using it up."""
        if self.is_used_up:
            raise AssertionError("no persisted producer id is left: refill first")
        return self.next_producer_id

    def take(self) -> int:
        """Return an id that no client was ever given."""
        producer_id = self.peek()
        self.next_producer_id += 1
        return producer_id
