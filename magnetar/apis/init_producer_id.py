"""InitProducerId (API key 22): give a producer its id and epoch, fencing its earlier incarnations.

Versions 0-5.  2: flexible.  3: the producer may name the id and epoch it has, to bump its own epoch
(KIP-360).  4: a fenced epoch is PRODUCER_FENCED; before, INVALID_PRODUCER_EPOCH (KIP-588).  5: the
answer may be TRANSACTION_ABORTABLE (KIP-890); this broker never gives that answer.

An open transaction of an earlier incarnation is aborted, and visible as aborted, before the answer.
A producer without a transactional id gets a fresh producer id at epoch 0.
"""

from __future__ import annotations

from coordinator.transactions.init_producer_id import claimed_identity
from magnetar.apis.authorization import Whole, require
from magnetar.apis.mirror import mirror
from magnetar.apis.partitions_named import OF_TRANSACTION
from magnetar.apis.registry import handles
from magnetar.apis.transaction_versions import INIT_PRODUCER_ID_FENCED_SINCE
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


@handles(
    InitProducerIdRequest,
    versions="0-5",
    refuse=mirror(
        InitProducerIdResponse,
        fenced_since=INIT_PRODUCER_ID_FENCED_SINCE,
        producer_id=-1,
        producer_epoch=-1,
    ),
    needs=[Whole([Operation.WRITE], Resource.TRANSACTIONAL_ID, "transactional_id")],
    is_for=OF_TRANSACTION,
)
async def init_producer_id(
    services: Services, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    if request.transactional_id is None:
        _check_idempotent(services, context)
    identity = await services.transactions.init_producer_id(
        request.transactional_id,
        request.transaction_timeout_ms,
        claimed_identity(request.producer_id, request.producer_epoch),
    )
    # A producer that is only idempotent has no transaction that log lines could name it for.
    if request.transactional_id is not None:
        services.transactions.clients.note(request.transactional_id, context)
    return InitProducerIdResponse(
        producer_id=identity.producer_id, producer_epoch=identity.producer_epoch
    )


def _check_idempotent(services: Services, context: RequestContext) -> None:
    """Raise CLUSTER_AUTHORIZATION_FAILED unless the client may write, to some topic at least."""
    if services.acls is None or services.acls.authorizer.allows_some(
        context.principal, context.host, Operation.WRITE, Resource.TOPIC
    ):
        return
    require(services, context, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER)
