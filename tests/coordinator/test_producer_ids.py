"""Producer ids are never given twice, and only from blocks that were persisted first."""

from __future__ import annotations

import pytest

from coordinator.producer_ids import ProducerIdBlock


def test_a_block_is_handed_out_in_order_and_then_used_up() -> None:
    block = ProducerIdBlock()
    assert block.is_used_up
    block.refill(5000, 3)
    assert [block.take() for _ in range(3)] == [5000, 5001, 5002]
    assert block.is_used_up


def test_peeking_uses_nothing_up() -> None:
    block = ProducerIdBlock()
    block.refill(7, 1)
    assert block.peek() == block.peek() == block.take() == 7


def test_nothing_is_taken_beyond_what_was_persisted() -> None:
    with pytest.raises(AssertionError, match="refill"):
        ProducerIdBlock().take()


def test_a_block_handed_out_before_is_refused() -> None:
    block = ProducerIdBlock()
    block.refill(1000, 1000)
    with pytest.raises(AssertionError, match="handed out before"):
        block.refill(1000, 1000)
