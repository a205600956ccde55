"""EndTxn: decide a transaction's outcome. The record is the decision; markers only carry it out.

A retry of the same EndTxn is success whatever became of the answer to the first: the outcome is
remembered until the next transaction begins. Sources: KIP-98, KIP-588.
"""

from __future__ import annotations

from coordinator.decision import Decision
from coordinator.transactions.metadata import (
    ProducerIdentity,
    TransactionMetadata,
    require_producer,
    transition,
)
from coordinator.transactions.states import State
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: (state, commit) in which the same EndTxn was decided already. Where markers are still due the
#: answer waits for them, as the first one did.
_DECIDED_ALREADY = frozenset(
    {
        (State.PREPARE_COMMIT, True),
        (State.PREPARE_ABORT, False),
        (State.COMPLETE_COMMIT, True),
        (State.COMPLETE_ABORT, False),
    }
)


def end_txn(
    txn: TransactionMetadata | None, identity: ProducerIdentity, *, commit: bool, now_ms: int
) -> Decision[TransactionMetadata]:
    """Decide to commit or abort the producer's open transaction.

    INVALID_TXN_STATE: there is none, or the other outcome was decided; PRODUCER_FENCED,
    INVALID_PRODUCER_ID_MAPPING: as `require_producer`.
    """
    txn = require_producer(txn, identity)
    if txn.state is State.ONGOING:
        prepared = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        return Decision((transition(txn, prepared, now_ms),))
    if (txn.state, commit) in _DECIDED_ALREADY:
        return Decision()
    wanted = "commit" if commit else "abort"
    raise KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"{txn.transactional_id} is {txn.state.label}: nothing to {wanted}",
    )
