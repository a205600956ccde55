"""Deadlines of transactional ids while the broker stops."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from coordinator.transactions.metadata import State, TransactionMetadata
from magnetar.clock import SystemClock
from magnetar.config.broker import BrokerConfig
from magnetar.runtime.transaction_clients import TransactionClients
from magnetar.runtime.transaction_expiry import TransactionExpiry


async def test_a_change_behind_the_stop_sets_no_alarm() -> None:
    clock = SystemClock()
    submit, nothing = Mock(side_effect=AssertionError("decided")), Mock(return_value=None)
    expiry = TransactionExpiry(
        BrokerConfig({}),
        clock,
        TransactionClients(),
        find=nothing,
        parent_of=nothing,
        newest_of=nothing,
        submit=submit,
    )
    expiry.stop()
    now_ms = clock.now_ms()
    expiry.schedule(
        TransactionMetadata("orders", 7, 0, 1, State.ONGOING, now_ms, started_at_ms=now_ms), now_ms
    )
    await asyncio.sleep(0.02)
    submit.assert_not_called()
