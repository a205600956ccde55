"""Ending a transaction from outside: through its coordinator, or by a marker in one partition.

The coordinator is the right way: InitProducerId for the id, as Kafka's fenceProducers. It aborts in
every partition and fences the producer. A marker is for a transaction that hangs in a partition
because no coordinator knows it (KIP-664). It leaves the coordinator's view alone, so it is refused
while a coordinator knows the transaction.
"""

from __future__ import annotations

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.errors import ClientError, check
from magnetar.client.partitions import OpenProducer, describe_open, held_back
from magnetar.client.transactions import State, Transaction, describe, owners
from wire.error_code import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from wire.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class VoteSealed(ClientError):
    """A child has voted, and its parent is about to decide: only the parent can abort."""

    def __init__(self, transactional_id: str, parent_id: str) -> None:
        self.parent_id = parent_id
        super().__init__(f"{transactional_id!r} has voted, and {parent_id!r} is about to decide.")


def abort_transaction(client: Client, transactional_id: str) -> Transaction:
    """Abort the open transaction of an id and fence its producer; return it as it was.

    ClientError if there is nothing to abort: the id is unknown, has no open transaction, or one
    that is decided. VoteSealed: its parent has to be aborted.
    """
    (transaction,) = describe(client, [transactional_id])
    # InitProducerId of an id without an open transaction would only fence its producer, which did
    # nothing wrong.
    if transaction.state not in (State.ONGOING, State.VOTED):
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
        # Within every limit: transaction.max.timeout.ms may be lower by now than what the
        # transaction has. None will have this one: the id's next producer names its own.
        transaction_timeout_ms=1,
        # Without producer id and epoch the broker fences whatever producer there is.
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )
    response = client.retry_transient(
        lambda: client.call(request, InitProducerIdResponse, node_id=transaction.coordinator),
        lambda response: response.error_code,
    )
    if (
        response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        and transaction.parent_id is not None
    ):
        raise VoteSealed(transactional_id, transaction.parent_id)
    check(response.error_code, f"aborting {transactional_id!r}")
    return transaction


def abort_in_partition(
    client: Client, partition: TopicPartition, start_offset: int, *, force: bool
) -> OpenProducer:
    """Write an abort marker for the transaction that begins at `start_offset` of a partition.

    Returns its producer as it was. ClientError if no open transaction begins there, and, unless
    `force`, if a coordinator knows the transaction, or may know it: this user does not see all.
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
    # The partition would have a marker, and the coordinator would later write its own: a commit
    # would then be half aborted.
    known = {} if force else owners(client, [found], must_see_all=True)
    owner = known.get((found.producer_id, partition))
    if owner is not None:
        raise ClientError(
            f"the transaction does not hang: it is {owner.state} at the coordinator of "
            f"{owner.transactional_id!r}. Abort that transactional id, which ends the transaction "
            "in all its partitions, or force the marker."
        )
    (found,) = held_back(client, leaders, [found])
    _write_abort(client, leaders[partition], found)
    return found


def _write_abort(client: Client, leader: int, found: OpenProducer) -> None:
    marker = WritableTxnMarker(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        # A producer without any marker has -1, which no coordinator has; with 0 the marker fences
        # no coordinator.
        coordinator_epoch=max(found.coordinator_epoch, 0),
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=found.topic, partition_indexes=[found.partition])],
    )
    response = client.call(
        WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, node_id=leader
    )
    for result in response.markers:
        for topic in result.topics:
            for partition in topic.partitions:
                check(
                    partition.error_code,
                    f"writing the abort marker to {topic.name}-{partition.partition_index}",
                )
