"""Ending a transaction from outside: through its coordinator, or, where none knows it, by a marker.

Through the coordinator is the right way: InitProducerId for the id, as Kafka's fenceProducers. It
aborts in every partition and fences the producer. A marker written into one partition is for a
transaction that hangs there (KIP-664); it leaves the coordinator's view alone, hence is refused
while a coordinator has the transaction.
"""

from __future__ import annotations

import shlex

from coordinator.transactions.metadata import State
from magnetar.client.cluster import Client, ClientError, TopicPartition, check
from magnetar.client.partitions import OpenProducer, describe_open, held_back
from magnetar.client.transactions import Transaction, describe, owners
from wire.error_code import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_NO_PRODUCER_ID = -1
_NO_PRODUCER_EPOCH = -1


def abort_transaction(client: Client, transactional_id: str) -> Transaction:
    """Abort the open transaction of an id and fence its producer; return it as it was.

    ClientError where there is nothing to abort: unknown id, none open, or one already decided; and
    for a vote that is sealed.
    """
    (transaction,) = describe(client, [transactional_id])
    if transaction.state not in (State.ONGOING.label, State.VOTED.label):
        reason = (
            "its outcome is decided, it cannot be changed"
            if transaction.is_open
            else "it has no open transaction"
        )
        raise ClientError(
            f"nothing to abort: {transactional_id!r} is {transaction.state}, {reason}."
        )
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction.timeout_ms,
        producer_id=_NO_PRODUCER_ID,
        producer_epoch=_NO_PRODUCER_EPOCH,
    )
    answer = client.until_settled(
        lambda: client.call(request, InitProducerIdResponse, node_id=transaction.coordinator),
        lambda answer: answer.error_code,
    )
    if answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS and transaction.parent_id is not None:
        raise ClientError(
            f"{transactional_id!r} has voted, and {transaction.parent_id!r} is about to decide: "
            f"`magnetar transactions abort {shlex.quote(transaction.parent_id)}` aborts them both."
        )
    check(answer.error_code, f"aborting {transactional_id!r}")
    return transaction


def abort_in_partition(
    client: Client, partition: TopicPartition, start_offset: int, *, force: bool
) -> OpenProducer:
    """Write an abort marker for the transaction that begins at `start_offset` of a partition;
    return what was open there.

    ClientError where none does, and, unless `force`, where a coordinator has it.
    """
    leaders = client.topics([partition[0]])
    open_producers = describe_open(client, leaders, [partition])
    name = f"{partition[0]}-{partition[1]}"
    for found in open_producers:
        if found.start_offset == start_offset:
            break
    else:
        begins = ", ".join(str(each.start_offset) for each in open_producers)
        raise ClientError(
            f"no open transaction of {name} begins at offset {start_offset}: "
            + (f"those open begin at {begins}." if begins else "none is open there.")
        )
    owner = owners(client, [found]).get((found.producer_id, partition))
    if owner is not None and not force:
        raise ClientError(
            f"the transaction does not hang: it is {owner.state} at the coordinator of "
            f"{owner.transactional_id!r}. `magnetar transactions abort {owner.transactional_id}` "
            "aborts it everywhere; --force writes the marker nevertheless."
        )
    (found,) = held_back(client, leaders, [found])
    _write_abort(client, leaders[partition], found)
    return found


def _write_abort(client: Client, leader: int, found: OpenProducer) -> None:
    marker = WritableTxnMarker(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        coordinator_epoch=max(found.coordinator_epoch, 0),
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=found.topic, partition_indexes=[found.partition])],
    )
    answer = client.call(
        WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, node_id=leader
    )
    for result in answer.markers:
        for topic in result.topics:
            for partition in topic.partitions:
                check(
                    partition.error_code,
                    f"writing the abort marker to {topic.name}-{partition.partition_index}",
                )
