"""InitProducerId: give a producer its id, and an epoch that fences every earlier incarnation.

If the earlier incarnation has an open transaction, the first decision aborts that transaction at a
bumped epoch. Once the abort's markers are durable, the request is decided again. A producer may
name the identity that it has (KIP-360), to bump its own epoch. If that identity is no longer the
current one, because another incarnation has bumped the epoch, the request is refused with
PRODUCER_FENCED and changes nothing. Sources: KIP-98, KIP-360.
"""

from __future__ import annotations

from coordinator.decision import Decision
from coordinator.transactions.epochs import Relation, next_identity, prepare_bumped, relation
from coordinator.transactions.metadata import (
    PREPARED,
    PRODUCER_EPOCH_MAX,
    ProducerIdentity,
    State,
    TransactionMetadata,
    transition,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records.header import NO_PRODUCER_EPOCH, NO_TIMESTAMP


def check_transactional_id(transactional_id: str | None) -> None:
    """Raise INVALID_REQUEST if the transactional id is empty.

    None is allowed: a producer without transactions.
    """
    if transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")


def check_timeout(timeout_ms: int, timeout_ms_max: int) -> None:
    """Raise INVALID_TRANSACTION_TIMEOUT unless 0 < `timeout_ms` <= `timeout_ms_max`."""
    if not 0 < timeout_ms <= timeout_ms_max:
        raise KafkaError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"transaction.timeout.ms={timeout_ms} is not within 1..{timeout_ms_max} "
            "(transaction.max.timeout.ms)",
        )


def claimed_identity(producer_id: int, producer_epoch: int) -> ProducerIdentity | None:
    """Return the identity that a request names; None for (-1, -1).

    Raises INVALID_REQUEST if only one of the two is given.
    """
    if producer_id == producer_epoch == -1:
        return None
    # As in Kafka: -1 alone means nothing. Other negative numbers are wrong claims, refused as such.
    if -1 in (producer_id, producer_epoch):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"producer id {producer_id} and epoch {producer_epoch}: give both or neither",
        )
    return ProducerIdentity(producer_id, producer_epoch)


def init_producer_id(
    txn: TransactionMetadata | None,
    transactional_id: str,
    *,
    parent_id: str | None = None,
    claimed: ProducerIdentity | None,
    timeout_ms: int,
    fresh_producer_id: int,
    now_ms: int,
) -> Decision[TransactionMetadata, ProducerIdentity | None]:
    """Decide which identity the producer gets. The identity is the decision's answer.

    The answer is None if the decision aborts an open transaction. The caller decides again when
    that abort's markers are durable.
    `parent_id`: the parent of a transactional id that is new (`joint.parent_of`).
    `fresh_producer_id`: a producer id to use; it is used up only if the decided record carries it.
    Raises PRODUCER_FENCED if `claimed` is not the current identity, and CONCURRENT_TRANSACTIONS if
    markers of the last transaction are still due.
    """
    if txn is None:
        fresh = TransactionMetadata(
            transactional_id=transactional_id,
            producer_id=fresh_producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            state=State.EMPTY,
            updated_at_ms=now_ms,
            parent_id=parent_id,
        )
        return Decision(records=(fresh,), answer=fresh.identity)
    is_retry = claimed is not None and _is_retry(txn, claimed)
    if txn.state in PREPARED:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id} is {txn.state.label}"
        )
    if txn.state in (State.ONGOING, State.VOTED):
        # The new epoch is in use: the producer received the first answer, so this retry is late.
        if is_retry:
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"{transactional_id}: a late retry: epoch {txn.producer_epoch} is in use already",
            )
        # `last_producer_epoch` is the epoch from which a retry may come. A new incarnation fences
        # the old one, which must not learn the new epoch, so none is stored. A producer that names
        # its own identity may ask again.
        last_epoch = NO_PRODUCER_EPOCH if claimed is None else txn.producer_epoch
        aborted = prepare_bumped(
            txn,
            State.PREPARE_ABORT,
            now_ms,
            fresh_producer_id=fresh_producer_id,
            last_producer_epoch=last_epoch,
        )
        return Decision(records=(aborted,), answer=None)
    # A retry gets the lost answer again: the epoch is bumped once for one request.
    if is_retry and txn.producer_epoch <= PRODUCER_EPOCH_MAX:
        if txn.state is State.EMPTY:
            return Decision(answer=txn.identity)
        # The end of a transaction bumped the epoch: the abort that this request began, or an EndTxn
        # whose answer the producer no longer waits for. The producer begins anew at that epoch, and
        # no retry of EndTxn can meet an outcome any more.
        emptied = _emptied(txn, timeout_ms, now_ms)
    else:
        last_epoch = NO_PRODUCER_EPOCH if claimed is None else claimed.producer_epoch
        identity = next_identity(txn, fresh_producer_id)
        emptied = _emptied(txn, timeout_ms, now_ms, last_producer_epoch=last_epoch, **identity)
    return Decision(records=(emptied,), answer=emptied.identity)


def _emptied(
    txn: TransactionMetadata, timeout_ms: int, now_ms: int, **identity: int
) -> TransactionMetadata:
    """Return `txn` as EMPTY, with the fields of `identity` in place of its own."""
    return transition(
        txn,
        State.EMPTY,
        now_ms,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        started_at_ms=NO_TIMESTAMP,
        **identity,
    )


def _is_retry(txn: TransactionMetadata, claimed: ProducerIdentity) -> bool:
    """Return whether `claimed` is the identity before the last bump: its answer was lost then.

    False if `claimed` is the current identity or the next one. Raises PRODUCER_FENCED otherwise.
    """
    found = relation(txn, claimed)
    if found in (Relation.CURRENT, Relation.NEXT):
        return False
    if found is Relation.LAST:
        return True
    raise KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"{txn.transactional_id}: {claimed} was fenced, {txn.identity} is current",
    )
