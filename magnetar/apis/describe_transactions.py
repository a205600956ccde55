"""DescribeTransactions (API key 65): producer, state, begin and partitions of transactional ids.

Version 0.  KIP-664.  TRANSACTIONAL_ID_NOT_FOUND for an id that is unknown, INVALID_REQUEST for an
empty one, NOT_COORDINATOR for another node's, each id for itself. An id named twice is answered
once, unlike in Kafka: a small request must not ask for a large answer many times over.

Each state carries tagged fields of our own (`wire.transaction_tags`): the TxnId, the
client that last spoke for the id, and of a joint transaction its parent, its children and its vote
(docs/joint_transactions.md). Topics and children that the client may not describe are left out.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from coordinator.transactions.metadata import State, TransactionMetadata
from magnetar.apis.authorization import Each, may
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from wire.transaction_tags import (
    CHILDREN_TAG,
    CLIENT_TAG,
    PARENT_TAG,
    TXN_ID_TAG,
    VOTED_TAG,
    encode_children,
    encode_client,
)

#: To wait for the disk with each piece costs more than to find a few ids more.
_PIECE = 1_024


@handles(
    DescribeTransactionsRequest,
    versions="0",
    needs=[Each(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, "transactional_ids")],
)
async def describe_transactions(
    services: Services, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    asked = dict.fromkeys(request.transactional_ids)
    known: dict[str, TransactionMetadata | ErrorCode] = {}
    async for some in services.turns.pieces([*asked], _PIECE):
        here = []
        for transactional_id in some:
            try:
                services.transactions.find(transactional_id)
                here.append(transactional_id)
            except KafkaError as refusal:  # Another node coordinates it.
                known[transactional_id] = refusal.code
        found = await services.transactions.describe(here)
        known.update((txn.transactional_id, txn) for txn in found)
    states = [
        _state(services, context, transactional_id, known.get(transactional_id))
        async for transactional_id in services.turns.each(asked)
    ]
    # Children may have begun since their parents were looked at.
    await services.transactions.durable()
    return DescribeTransactionsResponse(transaction_states=states)


def _state(
    services: Services,
    context: RequestContext,
    transactional_id: str,
    txn: TransactionMetadata | ErrorCode | None,
) -> TransactionState:
    if isinstance(txn, ErrorCode):
        return TransactionState(error_code=txn, transactional_id=transactional_id)
    family: tuple[tuple[int, bytes], ...] = ()
    # Also for an id that is unknown: its children may be open already.
    children = [
        child
        for child in services.transactions.children(transactional_id)
        # As ListTransactions leaves them out.
        if may(services, context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, child)
    ]
    if children:
        family = ((CHILDREN_TAG, encode_children(children)),)
    if txn is None:
        code = (
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
        )
        return TransactionState(
            error_code=code, transactional_id=transactional_id, unknown_tags=family
        )
    state = TransactionState(
        transactional_id=transactional_id,
        # Clients refuse states that Kafka does not have: a vote is told as Ongoing, with a tag.
        transaction_state=txn.state.told_as.label,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.started_at_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=[index for _, index in partitions])
            # Sorted first: `groupby` joins neighbours alone.
            for topic, partitions in groupby(sorted(txn.partitions), key=itemgetter(0))
            # What the client may not know of is left out.
            if may(services, context, Operation.DESCRIBE, Resource.TOPIC, topic)
        ],
    )
    if txn.txn_id is not None:
        state.unknown_tags = ((TXN_ID_TAG, txn.txn_id.to_bytes()),)
    if txn.parent_id is not None:
        state.unknown_tags += ((PARENT_TAG, txn.parent_id.encode()),)
    state.unknown_tags += family
    if txn.state is State.VOTED:
        state.unknown_tags += ((VOTED_TAG, b""),)
    client = services.transactions.store.clients.of(transactional_id)
    if client.client_address is not None:
        value = encode_client(client.client_id or "", client.client_address)
        state.unknown_tags += ((CLIENT_TAG, value),)
    return state
