"""ListTransactions (API key 66): the transactional ids that this broker coordinates, filtered.

Versions 0-2.  1: the time since a transaction's begin (KIP-994).  2: a pattern that the whole id
must match (KIP-1152); INVALID_REGULAR_EXPRESSION.

The response lists the states of the filter that do not exist, beside the ids that the other states
find. A child that has voted (docs/joint_transactions.md) is found by `Voted` and by `Ongoing`; its
state is shown as `Ongoing`, since clients refuse states that Kafka does not have.  KIP-664.

The response leaves out the ids that the client may not describe, as Kafka's does. A tagged field of
magnetar's own says that some are left out. Tools that look for hanging transactions need it: they
would take a hidden transaction for one that no coordinator knows. For the same reason the list
waits for shards that move to this node, and is COORDINATOR_LOAD_IN_PROGRESS if they take too long;
and another tagged field tells of which shards it is. If a shard moves while such a tool asks one
node after the other, it may be in no list.
"""

from __future__ import annotations

from coordinator.transactions.listing import Filters, parse_states
from magnetar.apis.authorization import may
from magnetar.apis.partitions_named import shards_of
from magnetar.apis.registry import handles
from magnetar.runtime.patterns import matching
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.leaders import local
from magnetar.storage.topic_names import TRANSACTION_STATE
from wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from wire.transaction_tags import HIDDEN_TAG, SHARDS_TAG, encode_shards


@handles(ListTransactionsRequest, versions="0-2", is_for=shards_of(TRANSACTION_STATE))
async def list_transactions(
    services: Services, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    services.nodes.check_shards(TRANSACTION_STATE)
    # In the step of the look-up: a shard that comes later is no part of what is found.
    shards = _shards(services)
    states, unknown = parse_states(request.state_filters)
    filters = Filters(
        states=states if request.state_filters else None,
        producer_ids=frozenset(request.producer_id_filters),
        longer_than_ms=request.duration_filter,
    )
    transactions = services.transactions
    selected = [
        txn
        for of_shard in transactions.store.in_states(filters.states)
        async for some in services.turns.pieces(of_shard)
        for txn in filters.select(transactions.up_to_date(some), context.now_ms)
    ]
    await transactions.durable()
    found = [
        txn
        async for some in services.turns.pieces(selected)
        for txn in some
        if may(
            services,
            context,
            Operation.DESCRIBE,
            Resource.TRANSACTIONAL_ID,
            txn.transactional_id,
        )
    ]
    is_hidden = len(found) < len(selected)
    # The pattern comes last: it waits for a thread, and has fewest ids to match then.
    if request.transactional_id_pattern:
        wanted = await matching(
            request.transactional_id_pattern,
            [txn.transactional_id async for some in services.turns.pieces(found) for txn in some],
        )
        found = [
            txn
            async for some in services.turns.pieces(found)
            for txn in some
            if txn.transactional_id in wanted
        ]
    return ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            TransactionState(
                transactional_id=txn.transactional_id,
                producer_id=txn.producer_id,
                transaction_state=txn.state.told_as.label,
            )
            async for some in services.turns.pieces(found)
            for txn in some
        ],
        unknown_tags=(*(((HIDDEN_TAG, b""),) if is_hidden else ()), (SHARDS_TAG, shards)),
    )


def _shards(services: Services) -> bytes:
    """Return which shards this node has, for a client that asks all nodes."""
    topic = services.topics.by_name(TRANSACTION_STATE)
    if topic is None:
        return encode_shards(0, ())
    return encode_shards(len(topic.partitions), (log.partition for log in local(topic.partitions)))
