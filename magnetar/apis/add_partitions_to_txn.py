"""AddPartitionsToTxn (API key 24): hold partitions in a producer's transaction, before data.

Versions 0-5.  2: a fenced epoch is PRODUCER_FENCED, before: INVALID_PRODUCER_EPOCH (KIP-588).  3:
flexible.  4: between brokers: many transactions at once, each to add or only to verify (KIP-890):
a partition that is not held is TRANSACTION_ABORTABLE.  5: an add may answer that too.

All or nothing: where one partition is refused, nothing is added, and the other partitions are
OPERATION_NOT_ATTEMPTED. A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION. Up to
version 3 a partition of the coordinators' topics is TOPIC_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    ProducerIdentity,
    TopicPartition,
)
from magnetar.apis.authorization import require
from magnetar.apis.partitions_named import transactions_in
from magnetar.apis.refusals import log_refusal
from magnetar.apis.registry import handles
from magnetar.apis.transaction_versions import ADD_PARTITIONS_FENCED_SINCE, code_for_version
from magnetar.runtime.add_messages import encode_codes
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic_names import INTERNAL
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

_BATCHED_SINCE = 4
#: A number of partitions that takes less than a turn.
_AT_ONCE = 100

Codes = dict[TopicPartition, ErrorCode]


def _ids(request: AddPartitionsToTxnRequest) -> list[str]:
    batched = [each.transactional_id for each in request.transactions]
    return batched or [request.v3_and_below_transactional_id]


@handles(AddPartitionsToTxnRequest, versions="0-5", is_for=transactions_in(_ids))
async def add_partitions_to_txn(
    services: Services, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    if context.version >= _BATCHED_SINCE:
        require(services, context, Operation.CLUSTER_ACTION, Resource.CLUSTER)
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id,
                    topic_results=await _answer(services, transaction, context),
                )
                async for transaction in services.turns.each(request.transactions)
            ]
        )
    transactional_id = request.v3_and_below_transactional_id
    require(services, context, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    results = await _answer(services, transaction, context)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


async def _answer(
    services: Services, transaction: AddPartitionsToTxnTransaction, context: RequestContext
) -> list[AddPartitionsToTxnTopicResult]:
    """Add or verify one transaction's partitions; return the code of each."""
    partitions: list[TopicPartition] = []
    async for topic in services.turns.each(transaction.topics):
        async for indexes in services.turns.pieces(topic.partitions):
            partitions += [TopicPartition(topic.name, index) for index in indexes]
    # Brokers, which send version 4 and later, add the coordinators' topics too; clients may not.
    codes = await _refused(services, partitions, context)
    # All or nothing: a transaction that holds half of its partitions would hide the mistake.
    if not codes:
        identity = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
        try:
            # KIP-890: the leader of a partition asks whether data may be appended. Nothing is
            # added.
            if transaction.verify_only:
                codes = await services.transactions.verify_partitions(
                    transaction.transactional_id,
                    identity,
                    partitions,
                )
            else:
                await services.transactions.add_partitions(
                    transaction.transactional_id,
                    identity,
                    frozenset(partitions),
                    transaction_version=(
                        TRANSACTION_VERSION_2
                        if context.version >= _BATCHED_SINCE
                        else TRANSACTION_VERSION_1
                    ),
                )
                # After the add: a fenced producer must not pass for the client that holds the
                # transaction.
                services.transactions.clients.note(transaction.transactional_id, context)
        except KafkaError as refusal:
            # The refusal is caught here, so the dispatcher does not see it and cannot log it.
            log_refusal(services, context, refusal, transactional_id=transaction.transactional_id)
            code = code_for_version(
                refusal.code, context.version, fenced_since=ADD_PARTITIONS_FENCED_SINCE
            )
            codes = dict.fromkeys(partitions, code)
    # Partitions without a code were added.
    return await _encoded(services, transaction.topics, codes)


async def _encoded(
    services: Services, topics: Sequence[AddPartitionsToTxnTopic], codes: Codes
) -> list[AddPartitionsToTxnTopicResult]:
    results = []
    async for topic in services.turns.each(topics):
        result = AddPartitionsToTxnTopicResult(name=topic.name)
        async for indexes in services.turns.pieces(topic.partitions):
            result.results_by_partition += encode_codes(topic.name, indexes, codes)
        results.append(result)
    return results


async def _refused(
    services: Services, partitions: Sequence[TopicPartition], context: RequestContext
) -> Codes:
    """Return a code for every partition if one of them cannot be added, else nothing."""
    is_client = context.version < _BATCHED_SINCE
    refused: Codes = {}
    for position, partition in enumerate(partitions, 1):
        if position % _AT_ONCE == 0 and services.turns.is_over():
            await services.turns.give_up()
        try:
            if is_client and partition.topic in INTERNAL:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, partition.topic)
            if is_client:
                require(services, context, Operation.WRITE, Resource.TOPIC, partition.topic)
            # Only the refusal matters: the coordinator does not know which partitions exist.
            services.topics.partition(*partition)
        except KafkaError as refusal:
            # It exists on another node, which asks for itself before it takes data.
            if refusal.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                refused[partition] = refusal.code
    # All or nothing, as in Kafka: the others say that nothing was tried.
    if refused:
        return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused
    return refused
