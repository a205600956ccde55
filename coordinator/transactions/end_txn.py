"""EndTxn: decide a transaction's outcome. The record is the decision; markers only carry it out.

A retry of the same EndTxn succeeds even if the first answer was lost: the coordinator remembers the
outcome until the next transaction begins. Under version 2 (EndTxn v5) every end bumps the epoch. A
retry names the epoch before the bump. A delayed request of an earlier transaction names an older
epoch, and is refused (KAFKA-17754). Sources: KIP-98, KIP-588, KIP-890.
"""

from __future__ import annotations

from enum import Enum, auto

from coordinator.decision import Decision
from coordinator.transactions.epochs import (
    Relation,
    next_identity,
    prepare_bumped,
    refusal_of,
    relation,
)
from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    ProducerIdentity,
    State,
    TransactionMetadata,
    TxnId,
    next_txn_id,
    transition,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records.header import NO_PRODUCER_EPOCH


class Verdict(Enum):
    """How an EndTxn that is not refused is carried out."""

    DECIDE = auto()
    """Decide the outcome now."""
    DECIDED = auto()
    """The same outcome is decided already. The answer waits for the markers that are still due."""
    NOTHING = auto()
    """Abort a transaction that holds no partition, so that no marker is due."""


_INVALID = ErrorCode.INVALID_TXN_STATE
_BUSY = ErrorCode.CONCURRENT_TRANSACTIONS

Rows = dict[tuple[State, Relation], tuple[Verdict | ErrorCode, Verdict | ErrorCode]]

#: (state, relation of the producer) -> (for a commit, for an abort). Absent: see `refusal_of`.
_VERSION_1: Rows = {
    (State.EMPTY, Relation.CURRENT): (_INVALID, _INVALID),
    (State.ONGOING, Relation.CURRENT): (Verdict.DECIDE, Verdict.DECIDE),
    (State.PREPARE_COMMIT, Relation.CURRENT): (Verdict.DECIDED, _INVALID),
    (State.PREPARE_ABORT, Relation.CURRENT): (_INVALID, Verdict.DECIDED),
    (State.VOTED, Relation.CURRENT): (Verdict.DECIDED, _INVALID),
    (State.COMPLETE_COMMIT, Relation.CURRENT): (Verdict.DECIDED, _INVALID),
    (State.COMPLETE_ABORT, Relation.CURRENT): (_INVALID, Verdict.DECIDED),
}

#: The same for EndTxn v5. In PREPARE_* and VOTED, CURRENT is the epoch that the answer names.
_VERSION_2: Rows = {
    (State.EMPTY, Relation.CURRENT): (_INVALID, Verdict.NOTHING),
    (State.ONGOING, Relation.CURRENT): (Verdict.DECIDE, Verdict.DECIDE),
    (State.PREPARE_COMMIT, Relation.CURRENT): (_BUSY, _BUSY),
    (State.PREPARE_ABORT, Relation.CURRENT): (_BUSY, _BUSY),
    (State.VOTED, Relation.CURRENT): (_BUSY, _BUSY),
    (State.COMPLETE_COMMIT, Relation.CURRENT): (_INVALID, Verdict.NOTHING),
    (State.COMPLETE_ABORT, Relation.CURRENT): (_INVALID, Verdict.NOTHING),
    (State.PREPARE_COMMIT, Relation.LAST): (Verdict.DECIDED, _INVALID),
    (State.PREPARE_ABORT, Relation.LAST): (_INVALID, Verdict.DECIDED),
    (State.VOTED, Relation.LAST): (Verdict.DECIDED, _INVALID),
    (State.COMPLETE_COMMIT, Relation.LAST): (Verdict.DECIDED, _INVALID),
    (State.COMPLETE_ABORT, Relation.LAST): (_INVALID, Verdict.DECIDED),
}


def end_txn(
    txn: TransactionMetadata | None,
    identity: ProducerIdentity,
    *,
    commit: bool,
    transaction_version: int,
    coordinator_partition: int,
    fresh_producer_id: int,
    now_ms: int,
) -> Decision[TransactionMetadata, ProducerIdentity]:
    """Decide to commit or abort the producer's open transaction. A child's commit is its vote.

    The answer is the `successor`: the identity that may begin the next transaction. Under version 2
    (EndTxn v5) the client gets it: the same producer id at the next epoch, or `fresh_producer_id`
    at epoch 0 if the epochs are used up. A retry gets the same answer. Under version 1 the identity
    stays.
    Raises INVALID_TXN_STATE if nothing is open or the other outcome was decided, and
    CONCURRENT_TRANSACTIONS, PRODUCER_FENCED or INVALID_PRODUCER_ID_MAPPING as `refusal_of`.
    """
    if txn is None:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "unknown transactional id")
    is_version_2 = transaction_version >= TRANSACTION_VERSION_2
    who = relation(txn, identity)
    row = (_VERSION_2 if is_version_2 else _VERSION_1).get((txn.state, who))
    if row is None:
        raise refusal_of(txn, identity, who)
    verdict = row[0] if commit else row[1]
    if isinstance(verdict, ErrorCode):
        wanted = "commit" if commit else "abort"
        raise KafkaError(
            verdict, f"{txn.transactional_id} is {txn.state.label}: nothing to {wanted}"
        )
    # No record: the answer waits for the markers of the first request, if some are due.
    if verdict is Verdict.DECIDED:
        return Decision(answer=txn.successor)
    # The epoch is bumped here too: otherwise a delayed end could end the next transaction.
    if verdict is Verdict.NOTHING:
        txn_id = next_txn_id(txn, coordinator_partition)
        ended = _aborted_nothing(txn, txn_id, fresh_producer_id, now_ms)
        return Decision(records=(ended,), answer=ended.successor)
    committed = State.PREPARE_COMMIT if txn.parent_id is None else State.VOTED
    prepared = committed if commit else State.PREPARE_ABORT
    if not is_version_2:
        # This end keeps the epoch, so no earlier epoch is left that a retry could name.
        ended = transition(
            txn,
            prepared,
            now_ms,
            last_producer_epoch=NO_PRODUCER_EPOCH,
            client_transaction_version=TRANSACTION_VERSION_1,
        )
        # The epoch stays, so the same identity begins the next transaction.
        return Decision(records=(ended,), answer=identity)
    bumped = prepare_bumped(
        txn,
        prepared,
        now_ms,
        fresh_producer_id=fresh_producer_id,
        last_producer_epoch=txn.producer_epoch,
        client_transaction_version=TRANSACTION_VERSION_2,
    )
    return Decision(records=(bumped,), answer=bumped.successor)


def _aborted_nothing(
    txn: TransactionMetadata, txn_id: TxnId, fresh_producer_id: int, now_ms: int
) -> TransactionMetadata:
    """Return the end of a transaction without partitions: COMPLETE at once, as no marker is due."""
    return transition(
        txn,
        State.COMPLETE_ABORT,
        now_ms,
        last_producer_epoch=txn.producer_epoch,
        started_at_ms=now_ms,
        txn_id=txn_id,
        client_transaction_version=TRANSACTION_VERSION_2,
        **next_identity(txn, fresh_producer_id),
    )
