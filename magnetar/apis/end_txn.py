"""EndTxn (API key 26): commit or abort the open transaction of a producer.

Versions 0-5.  2: a fenced epoch is PRODUCER_FENCED, before: INVALID_PRODUCER_EPOCH (KIP-588).  3:
flexible.  4: may answer TRANSACTION_ABORTABLE (KIP-890).  5: transaction version 2: the epoch is
bumped, and the producer id and epoch of the next transaction are answered; an abort without a
transaction is success, and bumps too.

Answers when every read_committed reader and every offset fetch sees the outcome; the commit of a
joint transaction's child is a vote, and answered when that is durable. A retry of what was decided
already is success. See docs/transactions.md, "A commit that has returned is visible".
"""

from __future__ import annotations

from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    ProducerIdentity,
)
from magnetar.apis.authorization import Whole
from magnetar.apis.mirror import mirror
from magnetar.apis.partitions_named import OF_TRANSACTION
from magnetar.apis.registry import Handled, handles
from magnetar.apis.transaction_versions import END_TXN_BUMPS_SINCE, END_TXN_FENCED_SINCE
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse


@handles(
    EndTxnRequest,
    versions="0-5",
    refuse=mirror(EndTxnResponse, fenced_since=END_TXN_FENCED_SINCE),
    needs=[Whole([Operation.WRITE], Resource.TRANSACTIONAL_ID, "transactional_id")],
    is_for=OF_TRANSACTION,
)
def end_txn(services: Services, request: EndTxnRequest, context: RequestContext) -> Handled:
    # KIP-890: the version of the request says which transaction version its producer speaks.
    bumps_epoch = context.version >= END_TXN_BUMPS_SINCE
    return services.transactions.end(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        _with_next_producer if bumps_epoch else _without_producer,
        # The handler is called in the step in which the request was begun.
        now_ms=context.now_ms,
        commit=request.committed,
        transaction_version=TRANSACTION_VERSION_2 if bumps_epoch else TRANSACTION_VERSION_1,
    )


def _with_next_producer(producer: ProducerIdentity) -> EndTxnResponse:
    return EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)


def _without_producer(_producer: ProducerIdentity) -> EndTxnResponse:
    return EndTxnResponse()
