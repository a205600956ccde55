"""Producer ids are never given twice, and only from blocks that were persisted first."""

from __future__ import annotations

import pytest

from coordinator.producer_ids import BLOCK_SIZE
from magnetar.runtime.producer_ids import ProducerIds


class Source:
    """A catalog that has given out all ids below `next_producer_id`."""

    def __init__(self, next_producer_id: int) -> None:
        self.next_producer_id = next_producer_id

    def allocate_producer_ids(self, block_size: int) -> int:
        first, self.next_producer_id = self.next_producer_id, self.next_producer_id + block_size
        return first

    def reserve_producer_ids_below(self, end_producer_id: int) -> None:
        self.next_producer_id = max(self.next_producer_id, end_producer_id)


def test_ids_are_given_in_order_from_blocks_that_are_persisted_first() -> None:
    source = Source(5000)
    producer_ids = ProducerIds(source)
    assert source.next_producer_id == 5000, "a broker without producers uses none up"
    for count in range(2 * BLOCK_SIZE + 1):
        assert producer_ids.take() == 5000 + count < source.next_producer_id


def test_peeking_uses_nothing_up() -> None:
    producer_ids = ProducerIds(Source(7))
    assert producer_ids.peek() == producer_ids.peek() == producer_ids.take() == 7
    assert producer_ids.take() == 8


def test_an_id_that_was_found_in_a_log_is_not_given() -> None:
    producer_ids = ProducerIds(Source(0))
    producer_ids.stay_above(4711)
    producer_ids.stay_above(12)
    assert producer_ids.take() == 4712


def test_a_block_handed_out_before_is_refused() -> None:
    source = Source(1000)
    producer_ids = ProducerIds(source)
    for _ in range(BLOCK_SIZE):
        producer_ids.take()
    source.next_producer_id = 1000
    with pytest.raises(AssertionError, match="handed out before"):
        producer_ids.take()
