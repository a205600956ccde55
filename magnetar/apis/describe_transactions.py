"""DescribeTransactions (API key 65): producer, state, begin and partitions of transactional ids.

Version 0.  KIP-664.  TRANSACTIONAL_ID_NOT_FOUND for an id that is unknown, INVALID_REQUEST for an
empty one, each id for itself. An id named twice is answered once, unlike in Kafka: a small request
shall not ask for a large answer many times over.

Each state carries a tagged field of our own, which other clients skip: tag 1000, the 16 bytes of
the TxnId of the current or last transaction (docs/transactions.md).
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from coordinator.transactions.metadata import TransactionMetadata
from magnetar.apis.registry import RequestContext, handles
from wire.error_code import ErrorCode
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

if TYPE_CHECKING:
    from magnetar.broker import Broker

#: The tag of the TxnId, here and in `__transaction_state`.
TXN_ID_TAG = 1000


@handles(DescribeTransactionsRequest, versions="0")
async def describe_transactions(
    broker: Broker, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    asked = dict.fromkeys(request.transactional_ids)
    known = {txn.transactional_id: txn for txn in await broker.transactions.describe(asked)}
    return DescribeTransactionsResponse(
        transaction_states=[
            _state(transactional_id, known.get(transactional_id)) for transactional_id in asked
        ]
    )


def _state(transactional_id: str, txn: TransactionMetadata | None) -> TransactionState:
    if txn is None:
        code = (
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
        )
        return TransactionState(error_code=code, transactional_id=transactional_id)
    state = TransactionState(
        transactional_id=transactional_id,
        transaction_state=txn.state.label,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.started_at_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=[index for _, index in partitions])
            for topic, partitions in groupby(sorted(txn.partitions), key=itemgetter(0))
        ],
    )
    if txn.txn_id is not None:
        state.unknown_tags = ((TXN_ID_TAG, txn.txn_id.to_bytes()),)
    return state
