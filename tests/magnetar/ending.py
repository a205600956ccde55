"""The end of a transaction, waited for as its client's connection would."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from coordinator.transactions.metadata import TRANSACTION_VERSION_1, ProducerIdentity
from magnetar.apis.registry import Handled
from magnetar.runtime.delayed_response import DelayedResponse, DelayedResponses
from magnetar.runtime.transactions import Transactions
from wire.message import Message
from wire.messages.end_txn import EndTxnResponse


async def end(
    transactions: Transactions,
    transactional_id: str,
    identity: ProducerIdentity,
    *,
    commit: bool,
    transaction_version: int = TRANSACTION_VERSION_1,
) -> ProducerIdentity:
    """End the transaction; return who may begin the next one. Raises KafkaError."""
    response = await when_made(
        transactions.end(
            transactional_id,
            identity,
            lambda producer: EndTxnResponse(
                producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
            ),
            now_ms=transactions._clock.now_ms(),
            commit=commit,
            transaction_version=transaction_version,
        )
    )
    assert isinstance(response, EndTxnResponse)
    return ProducerIdentity(response.producer_id, response.producer_epoch)


async def when_made(response: Handled) -> Message | None:
    """Return a handler's response once it is made, as a connection would."""
    if isinstance(response, Coroutine):
        response = await response
    if not isinstance(response, DelayedResponse):
        return response
    over = asyncio.Event()
    DelayedResponses(asyncio.get_running_loop()).begin(response, over.set)
    try:
        await over.wait()
    except asyncio.CancelledError:
        response.cancel()
        raise
    return response.make(response.is_late)
