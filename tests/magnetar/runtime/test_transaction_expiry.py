"""Deadlines of transactional ids while the broker stops, or the catalog is away."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from coordinator.decision import Decision
from coordinator.transactions.metadata import State, TransactionMetadata
from magnetar.clock import SystemClock
from magnetar.config.broker import BrokerConfig
from magnetar.runtime import transaction_expiry
from magnetar.runtime.transaction_clients import TransactionClients
from magnetar.runtime.transaction_expiry import TransactionExpiry
from magnetar.storage.database import CatalogUnavailable


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


async def test_a_timeout_that_the_catalog_does_not_answer_is_decided_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of an id whose epochs are used up: it needs a producer id that the catalog has."""
    monkeypatch.setattr(transaction_expiry, "_AGAIN_MS", 20)
    clock = SystemClock()
    now_ms = clock.now_ms()
    open_ = {
        name: TransactionMetadata(name, 7, 0, 1, State.ONGOING, now_ms, started_at_ms=now_ms)
        for name in ("first", "second")
    }
    decided: list[str] = []

    def submit(transactional_id: str, *_: object) -> Decision[TransactionMetadata, None]:
        if not decided:
            decided.append("nothing")
            raise CatalogUnavailable("it does not answer")
        decided.append(transactional_id)
        del open_[transactional_id]
        return Decision(answer=None)

    expiry = TransactionExpiry(
        BrokerConfig({}),
        clock,
        TransactionClients(),
        find=open_.get,
        parent_of=Mock(return_value=None),
        newest_of=Mock(return_value=None),
        submit=submit,
    )
    for each in open_.values():
        expiry.schedule(each, now_ms)
    async with asyncio.timeout(10):
        while open_:
            await asyncio.sleep(0.005)
    expiry.stop()
    assert decided == ["nothing", "second", "first"]
