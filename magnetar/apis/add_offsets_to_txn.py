"""AddOffsetsToTxn (API key 25): hold the offsets of a consumer group in the open transaction.

Versions 0-4.  2: a fenced epoch is PRODUCER_FENCED, before: INVALID_PRODUCER_EPOCH (KIP-588).  3:
flexible.  4: may answer TRANSACTION_ABORTABLE (KIP-890).

The same as AddPartitionsToTxn of the partition of `__consumer_offsets` that holds the group.
"""

from __future__ import annotations

from coordinator.transactions.error_versions import ADD_OFFSETS_FENCED_SINCE, code_for_version
from coordinator.transactions.metadata import ProducerIdentity
from magnetar.apis.refusals import log_refusal
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.errors import KafkaError
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


@handles(AddOffsetsToTxnRequest, versions="0-4")
async def add_offsets_to_txn(
    services: Services, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    try:
        await services.transactions.add_offsets(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            request.group_id,
        )
    except KafkaError as refusal:
        log_refusal(
            services,
            context,
            refusal,
            transactional_id=request.transactional_id,
            group_id=request.group_id,
        )
        return AddOffsetsToTxnResponse(
            error_code=code_for_version(
                refusal.code, context.version, fenced_since=ADD_OFFSETS_FENCED_SINCE
            )
        )
    services.transactions.clients.note(request.transactional_id, context)
    return AddOffsetsToTxnResponse()
