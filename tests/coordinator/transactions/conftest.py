"""A transactional id in any state, with recognisable values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.transactions.metadata import (
    UNFINISHED,
    State,
    TopicPartition,
    TransactionMetadata,
    TxnId,
)

MakeTxn = Callable[..., TransactionMetadata]

A0 = TopicPartition("a", 0)


@pytest.fixture
def make_txn() -> MakeTxn:
    """Return a maker of tx-1: producer 1000 at epoch 5, begun at 10 s, timeout 60 s."""

    def make(state: State, **changes: Any) -> TransactionMetadata:
        txn = TransactionMetadata(
            transactional_id="tx-1",
            producer_id=1000,
            producer_epoch=5,
            timeout_ms=60_000,
            state=state,
            updated_at_ms=10_000,
        )
        if state is not State.EMPTY:
            txn = txn._replace(started_at_ms=10_000, txn_id=TxnId(7, 5, 0, 1000))
        if state is State.ONGOING or state in UNFINISHED:
            txn = txn._replace(partitions=frozenset({A0}))
        return txn._replace(**changes)

    return make
