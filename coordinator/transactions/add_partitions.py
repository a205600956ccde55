"""AddPartitionsToTxn and AddOffsetsToTxn: what a transaction may write to, logged before it does.

The first partition begins the transaction. The offsets of a group are a partition of
`__consumer_offsets`. Sources: KIP-98; PIP-473 and KIP-890 (op before data).
"""

from __future__ import annotations

from collections.abc import Set

from coordinator.decision import Decision
from coordinator.partitioning import partition_for
from coordinator.transactions.metadata import (
    ProducerIdentity,
    TopicPartition,
    TransactionMetadata,
    require_producer,
    transition,
)
from coordinator.transactions.states import PREPARED, State
from coordinator.transactions.txn_id import COUNT_MAX, TxnId
from wire.error_code import ErrorCode
from wire.errors import KafkaError

OFFSETS_TOPIC = "__consumer_offsets"


def offsets_partition(group_id: str, offsets_partition_count: int) -> TopicPartition:
    """Return the partition that holds the committed offsets of `group_id`."""
    return TopicPartition(OFFSETS_TOPIC, partition_for(group_id, offsets_partition_count))


def add_partitions(
    txn: TransactionMetadata | None,
    identity: ProducerIdentity,
    partitions: Set[TopicPartition],
    *,
    coordinator_partition: int,
    now_ms: int,
    may_begin: bool = True,
) -> Decision[TransactionMetadata]:
    """Decide to hold `partitions` in the producer's transaction, beginning one if none is open.

    Nothing to log where they are held already; no partitions at all begin one too, as in Kafka.
    CONCURRENT_TRANSACTIONS: markers of the last transaction are still due, or it may not begin
    because `max.active.transactions` are open: either way clients wait and ask again;
    PRODUCER_FENCED,
    INVALID_PRODUCER_ID_MAPPING: as `require_producer`.
    """
    txn = require_producer(txn, identity)
    if txn.state in PREPARED:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS, f"{txn.transactional_id} is {txn.state.label}"
        )
    if txn.state is State.ONGOING:
        if txn.partitions.issuperset(partitions):
            return Decision()
        held = txn.partitions.union(partitions)
        return Decision((transition(txn, State.ONGOING, now_ms, partitions=held),))
    if not may_begin:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"{txn.transactional_id}: max.active.transactions are open; wait for one to end",
        )
    begun = transition(
        txn,
        State.ONGOING,
        now_ms,
        partitions=frozenset(partitions),
        started_at_ms=now_ms,
        txn_id=_next_txn_id(txn, coordinator_partition),
    )
    return Decision((begun,))


def _next_txn_id(txn: TransactionMetadata, coordinator_partition: int) -> TxnId:
    """Return the id of the transaction that begins: one more within the epoch, or its first.

    An epoch that has counted 2**32 transactions is refused: its producer takes a new one.
    """
    last = txn.txn_id
    count = 0
    if last is not None and (last.producer_id, last.producer_epoch) == txn.identity:
        count = last.count + 1
    if count > COUNT_MAX:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED, f"{txn.transactional_id}: its epoch has no transaction left"
        )
    return TxnId(coordinator_partition, txn.producer_epoch, count, txn.producer_id)
