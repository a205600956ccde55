"""InitProducerId: give a producer its id and an epoch that fences every earlier incarnation.

An open transaction of the earlier incarnation is aborted first, at a bumped epoch, by a decision of
its own; once its markers are durable the request is decided again. A producer that names the
identity it has (KIP-360) bumps its own epoch. Naming an epoch that another incarnation has bumped
is PRODUCER_FENCED, before anything is touched. Sources: KIP-98, KIP-360.
"""

from __future__ import annotations

from coordinator.decision import Decision
from coordinator.transactions.epochs import Relation, next_identity, prepare_bumped, relation
from coordinator.transactions.metadata import (
    NO_PRODUCER_EPOCH,
    NO_TIMESTAMP,
    PREPARED,
    PRODUCER_EPOCH_MAX,
    ProducerIdentity,
    State,
    TransactionMetadata,
    transition,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def check_transactional_id(transactional_id: str | None) -> None:
    """Refuse an empty transactional id: INVALID_REQUEST. None is a producer without
    transactions."""
    if transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")


def check_timeout(timeout_ms: int, timeout_ms_max: int) -> None:
    """Refuse timeouts outside (0, transaction.max.timeout.ms]: INVALID_TRANSACTION_TIMEOUT."""
    if not 0 < timeout_ms <= timeout_ms_max:
        raise KafkaError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"transaction.timeout.ms={timeout_ms} is not within 1..{timeout_ms_max} "
            "(transaction.max.timeout.ms)",
        )


def claimed_identity(producer_id: int, producer_epoch: int) -> ProducerIdentity | None:
    """Return the identity a request names, None for (-1, -1). Half of one is INVALID_REQUEST."""
    if producer_id < 0 and producer_epoch < 0:
        return None
    if producer_id < 0 or producer_epoch < 0:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"producer id {producer_id} with epoch {producer_epoch}"
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
    """Decide which identity the producer gets: the answer. None: an open transaction is aborted
    first; decide again when the markers of that are durable.

    `parent_id`: whose child an id that is seen for the first time is (`joint.parent_of`).
    `fresh_producer_id` is used up only if the record decided carries it.
    PRODUCER_FENCED: `claimed` is not the current identity; CONCURRENT_TRANSACTIONS: markers of the
    last transaction are still due.
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
        # The epoch is in use, so its owner got the answer that this retry asks for.
        if is_retry:
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"{transactional_id}: a late retry; epoch {txn.producer_epoch} is in use already",
            )
        # A new incarnation fences the old one, which must not learn the new epoch. A producer that
        # names its own identity may ask again.
        last_epoch = NO_PRODUCER_EPOCH if claimed is None else txn.producer_epoch
        aborted = prepare_bumped(
            txn,
            State.PREPARE_ABORT,
            now_ms,
            fresh_producer_id=fresh_producer_id,
            last_producer_epoch=last_epoch,
        )
        return Decision(records=(aborted,), answer=None)
    # The retry gets the lost answer again: one bump for one wish.
    if is_retry and txn.producer_epoch <= PRODUCER_EPOCH_MAX:
        if txn.state is State.EMPTY:
            return Decision(answer=txn.identity)
        # The bump was an end's: of the abort that this request began, or of an EndTxn that the
        # producer gives up. It begins anew, with no outcome that an EndTxn could repeat.
        emptied = _emptied(txn, timeout_ms, now_ms)
    else:
        last_epoch = NO_PRODUCER_EPOCH if claimed is None else claimed.producer_epoch
        identity = next_identity(txn, fresh_producer_id)
        emptied = _emptied(txn, timeout_ms, now_ms, last_producer_epoch=last_epoch, **identity)
    return Decision(records=(emptied,), answer=emptied.identity)


def _emptied(
    txn: TransactionMetadata, timeout_ms: int, now_ms: int, **identity: int
) -> TransactionMetadata:
    """Return `txn` without a transaction, with the fields of `identity` instead of its own."""
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
    """Return whether `claimed` is what the current identity was bumped from: the answer was lost.

    False if it is the current identity, or will be; PRODUCER_FENCED if it is none of these.
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
