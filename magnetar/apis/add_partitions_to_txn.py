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
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.storage.topic_names import INTERNAL
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
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
    results, partitions, codes = await _checked(services, transaction.topics, context)
    if not codes:
        codes = await _added_or_verified(services, transaction, partitions, context)
    if codes:
        # All or nothing: a transaction that holds half of its partitions would hide the mistake.
        async for result in services.turns.each(results):
            async for some in services.turns.pieces(result.results_by_partition):
                for one in some:
                    one.partition_error_code = codes.get(
                        TopicPartition(result.name, one.partition_index),
                        ErrorCode.OPERATION_NOT_ATTEMPTED,
                    )
    return results


async def _added_or_verified(
    services: Services,
    transaction: AddPartitionsToTxnTransaction,
    partitions: Sequence[TopicPartition],
    context: RequestContext,
) -> Codes:
    """Return the code of each partition; no codes: all were added."""
    transactional_id = transaction.transactional_id
    identity = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    transactions = services.transactions
    try:
        # KIP-890: the leader of a partition asks whether data may be appended. Nothing is added.
        if transaction.verify_only:
            return await transactions.holds.verify(transactional_id, identity, partitions)
        version = (
            TRANSACTION_VERSION_2 if context.version >= _BATCHED_SINCE else TRANSACTION_VERSION_1
        )
        await transactions.holds.add_partitions(
            transactional_id, identity, frozenset(partitions), transaction_version=version
        )
        # After the add: a fenced producer must not pass for the client that holds the transaction.
        transactions.clients.note(transactional_id, context)
        return {}
    except KafkaError as refusal:
        # The refusal is caught here, so the dispatcher does not see it and cannot log it.
        log_refusal(services, context, refusal, transactional_id=transactional_id)
        code = code_for_version(
            refusal.code, context.version, fenced_since=ADD_PARTITIONS_FENCED_SINCE
        )
        return dict.fromkeys(partitions, code)


async def _checked(
    services: Services, topics: Sequence[AddPartitionsToTxnTopic], context: RequestContext
) -> tuple[list[AddPartitionsToTxnTopicResult], list[TopicPartition], Codes]:
    """Return the results for when all partitions are added, the partitions, and a code for each
    that cannot be added."""
    results: list[AddPartitionsToTxnTopicResult] = []
    partitions: list[TopicPartition] = []
    refused: Codes = {}
    turns = services.turns
    # Plain loops: a request names few partitions, and an `async for` costs as much as several.
    for topic in topics:
        if results and turns.is_over():
            await turns.give_up()
        name, code = topic.name, _topic_code(services, topic.name, context)
        found = services.topics.by_name(name)
        # Also those of other nodes: a leader asks for itself before it takes data.
        partition_count = 0 if found is None else len(found.partitions)
        of_topic: list[AddPartitionsToTxnPartitionResult] = []
        results.append(AddPartitionsToTxnTopicResult(name=name, results_by_partition=of_topic))
        for position, index in enumerate(topic.partitions, 1):
            if position % _AT_ONCE == 0 and turns.is_over():
                await turns.give_up()
            of_topic.append(AddPartitionsToTxnPartitionResult(partition_index=index))
            partition = TopicPartition(name, index)
            partitions.append(partition)
            if code is not ErrorCode.NONE:
                refused[partition] = code
            elif not 0 <= index < partition_count:
                refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return results, partitions, refused


def _topic_code(services: Services, name: str, context: RequestContext) -> ErrorCode:
    """Return NONE if the sender may add partitions of a topic, else what they are refused with."""
    # Brokers, which send version 4 and later, add the coordinators' topics too; clients may not.
    if context.version >= _BATCHED_SINCE:
        return ErrorCode.NONE
    if name in INTERNAL:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        require(services, context, Operation.WRITE, Resource.TOPIC, name)
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE
