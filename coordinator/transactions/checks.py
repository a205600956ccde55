"""Op before data: a partition takes transactional data only of the transaction that holds it.

Asked for every transactional batch and every transactional offset commit, whatever the request's
version, in the step that appends. So a zombie's late batch and a batch delayed past its
transaction's end can touch nothing. Sources: KIP-890, PIP-473; the codes as Apache Kafka 4.3's.
"""

from __future__ import annotations

from coordinator.transactions.init_producer_id import check_transactional_id
from coordinator.transactions.metadata import TransactionMetadata
from coordinator.transactions.states import State
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: From these versions on a request adds what its data is for: transaction version 2.
PRODUCE_ADDS_SINCE = 12
TXN_OFFSET_COMMIT_ADDS_SINCE = 5

#: The first versions whose clients know TRANSACTION_ABORTABLE; INVALID_TXN_STATE before.
PRODUCE_ABORTABLE_SINCE = 11
TXN_OFFSET_COMMIT_ABORTABLE_SINCE = 4


def refusal_of_data(refusal: KafkaError) -> KafkaError:
    """Return what a Produce or TxnOffsetCommit answers where adding its partitions was refused."""
    if refusal.code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, refusal.detail)
    return refusal


def check_named(transactional_id: str | None) -> str:
    """Return the id under which a request sends transactional data.

    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: it names none, as Kafka answers; INVALID_REQUEST: it is
    empty.
    """
    if transactional_id is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a transactional batch in a request without a transactional id",
        )
    check_transactional_id(transactional_id)
    return transactional_id


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
