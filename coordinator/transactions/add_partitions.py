"""What a transaction may write to, logged before it does: AddPartitionsToTxn, AddOffsetsToTxn.

Under version 2 Produce and TxnOffsetCommit add by themselves, in the step that appends their data.
The first partition begins the transaction. The offsets of a group are a partition of
`__consumer_offsets`. Sources: KIP-98; PIP-473 and KIP-890 (op before data).
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from coordinator.decision import Decision
from coordinator.transactions.epochs import require_producer
from coordinator.transactions.metadata import (
    UNFINISHED,
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
    next_txn_id,
    transition,
)
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
    CONCURRENT_TRANSACTIONS: markers of the last transaction are still due, its vote waits for the
    decision, or it may not begin because `max.active.transactions` are open. Each time clients wait
    and ask again. PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING: as `require_producer`.
    """
    txn = require_producer(txn, identity)
    if txn.state in UNFINISHED:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS, f"{txn.transactional_id} is {txn.state.label}"
        )
    if txn.state is State.ONGOING:
        # Every batch of version 2 asks again, and every client whose answer was lost.
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
    # After the branch for ONGOING: the limit never stops a transaction that is open already.
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


def refusal_of_data(refusal: KafkaError) -> KafkaError:
    """Return what a Produce or TxnOffsetCommit answers where adding its partitions was refused."""
    # Kafka answers data of a stale epoch so, in every request version.
    if refusal.code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, refusal.detail)
    return refusal


def check_named(transactional_id: str | None) -> str:
    """Return the id under which a request sends transactional data.

    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: it names none, as Kafka answers.
    """
    if transactional_id is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a transactional batch in a request without a transactional id",
        )
    return transactional_id


def verified(
    txn: TransactionMetadata | None,
    identity: ProducerIdentity,
    partitions: Iterable[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    """Return for each partition whether `txn` is this producer's, ONGOING, and holds it: NONE.

    Else as `check_holds` for a client that knows TRANSACTION_ABORTABLE, but a stale epoch is
    PRODUCER_FENCED: the leader of a partition asks, and tells its client `refusal_of_data`.
    """
    if txn is None or identity.producer_id != txn.producer_id:
        return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if identity.producer_epoch != txn.producer_epoch:
        return dict.fromkeys(partitions, ErrorCode.PRODUCER_FENCED)
    held = txn.partitions if txn.state is State.ONGOING else frozenset()
    return {
        partition: ErrorCode.NONE if partition in held else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def check_holds(
    txn: TransactionMetadata | None,
    producer_id: int,
    producer_epoch: int,
    partition: tuple[str, int],
    *,
    is_abortable_known: bool,
) -> None:
    """Refuse data for `partition` unless `txn` is this producer's, ONGOING, and holds it.

    INVALID_PRODUCER_ID_MAPPING: unknown transactional id, or another producer's;
    INVALID_PRODUCER_EPOCH: a stale epoch, in every request version; TRANSACTION_ABORTABLE
    (INVALID_TXN_STATE for clients that do not know it): the partition is not in the transaction.
    """
    if txn is None or producer_id != txn.producer_id:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"no transactional id has producer {producer_id}"
        )
    if producer_epoch != txn.producer_epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"{txn.transactional_id}: epoch {producer_epoch}, have {txn.producer_epoch}",
        )
    if txn.state is State.ONGOING and partition in txn.partitions:
        return
    raise KafkaError(
        ErrorCode.TRANSACTION_ABORTABLE if is_abortable_known else ErrorCode.INVALID_TXN_STATE,
        f"{partition[0]}-{partition[1]} is not in a transaction of {txn.transactional_id}"
        f" ({txn.state.label})",
    )
