"""What a transaction may write to, logged before it does: AddPartitionsToTxn, AddOffsetsToTxn.

Under version 2 Produce and TxnOffsetCommit add by themselves, in the step that appends their data.
The first partition begins the transaction. The offsets of a group are a partition of
`__consumer_offsets`. Sources: KIP-98; PIP-473 and KIP-890 (op before data).
"""

from __future__ import annotations

from collections.abc import Set

from coordinator.decision import Decision
from coordinator.transactions.metadata import (
    ProducerIdentity,
    TopicPartition,
    TransactionMetadata,
    next_txn_id,
    require_producer,
    transition,
)
from coordinator.transactions.states import UNSETTLED, State
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def add_partitions(
    txn: TransactionMetadata | None,
    identity: ProducerIdentity,
    partitions: Set[TopicPartition],
    *,
    coordinator_partition: int,
    now_ms: int,
    transaction_version: int,
    may_begin: bool = True,
) -> Decision[TransactionMetadata, None]:
    """Decide to hold `partitions` in the producer's transaction, beginning one if none is open.

    Nothing to log where they are held already; no partitions at all begin one too, as in Kafka.
    CONCURRENT_TRANSACTIONS: markers of the last transaction are still due, it is a vote that nobody
    has decided yet, or it may not begin because `max.active.transactions` are open: each time
    clients wait and ask again; PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING: as `require_producer`.
    """
    txn = require_producer(txn, identity)
    if txn.state in UNSETTLED:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS, f"{txn.transactional_id} is {txn.state.label}"
        )
    if txn.state is State.ONGOING:
        if txn.partitions.issuperset(partitions):
            return Decision(answer=None)
        held = txn.partitions.union(partitions)
        added = transition(
            txn,
            State.ONGOING,
            now_ms,
            partitions=held,
            client_transaction_version=transaction_version,
        )
        return Decision(records=(added,), answer=None)
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
        txn_id=next_txn_id(txn, coordinator_partition),
        client_transaction_version=transaction_version,
    )
    return Decision(records=(begun,), answer=None)
