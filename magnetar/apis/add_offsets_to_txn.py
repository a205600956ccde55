"""AddOffsetsToTxn (API key 25): hold the offsets of a consumer group in the open transaction.

Versions 0-4.  2: a fenced epoch is PRODUCER_FENCED, before: INVALID_PRODUCER_EPOCH (KIP-588).  3:
flexible.  4: may answer TRANSACTION_ABORTABLE (KIP-890).

The same as AddPartitionsToTxn of the partition of `__consumer_offsets` that holds the group.
"""

from __future__ import annotations

from coordinator.transactions.metadata import ProducerIdentity
from magnetar.apis.authorization import Whole
from magnetar.apis.mirror import mirror
from magnetar.apis.partitions_named import OF_TRANSACTION
from magnetar.apis.registry import handles
from magnetar.apis.transaction_versions import ADD_OFFSETS_FENCED_SINCE
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


@handles(
    AddOffsetsToTxnRequest,
    versions="0-4",
    refuse=mirror(AddOffsetsToTxnResponse, fenced_since=ADD_OFFSETS_FENCED_SINCE),
    needs=[
        Whole([Operation.WRITE], Resource.TRANSACTIONAL_ID, "transactional_id"),
        Whole([Operation.READ], Resource.GROUP, "group_id"),
    ],
    is_for=OF_TRANSACTION,
)
async def add_offsets_to_txn(
    services: Services, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    await services.transactions.holds.add_offsets(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        request.group_id,
    )
    # After the add: a fenced producer must not pass for the client that holds the transaction.
    services.transactions.clients.note(request.transactional_id, context)
    return AddOffsetsToTxnResponse()
