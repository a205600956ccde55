"""Who may act as the producer of a transactional id, and how its epoch is bumped.

A higher epoch of the same producer id fences the lower ones. Version 2 ends every transaction at a
bumped epoch (KIP-890); any version is aborted at one where a newer incarnation takes over or the
timeout strikes (KIP-98, KIP-360). Data keeps the old epoch, markers carry the new one. Kafka logs
bump and decision as one record too.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Any, Protocol

from coordinator.decision import AnswerT, Decision
from coordinator.transactions.metadata import (
    PREPARED,
    PRODUCER_EPOCH_MAX,
    UNFINISHED,
    ProducerIdentity,
    State,
    TransactionMetadata,
    transition,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records.header import NO_PRODUCER_EPOCH


class Relation(IntEnum):
    """How the producer that a request names stands to the one that a coordinator holds."""

    CURRENT = auto()
    LAST = auto()
    """What the current one was bumped or rotated from: its answer may have been lost."""
    NEXT = auto()
    """What COMPLETE_* will rotate to."""
    OTHER_EPOCH = auto()
    OTHER_PRODUCER = auto()


def relation(txn: TransactionMetadata, identity: ProducerIdentity) -> Relation:
    """Return how `identity` stands to the producer of `txn`."""
    producer_id, producer_epoch = identity
    if producer_id == txn.producer_id:
        if producer_epoch == txn.producer_epoch:
            return Relation.CURRENT
        # Both must agree: after a fence `last_producer_epoch` is -1, and no older epoch is LAST.
        is_last = txn.last_producer_epoch == producer_epoch == txn.producer_epoch - 1
        return Relation.LAST if is_last else Relation.OTHER_EPOCH
    # Only while markers are due: COMPLETE_* makes the successor the current producer.
    if txn.state in UNFINISHED and identity == txn.successor:
        return Relation.NEXT
    # Epoch 0 means that the producer has just been rotated: only then can its answer be lost.
    if producer_id == txn.previous_producer_id and txn.producer_epoch == 0:
        is_last = txn.last_producer_epoch == producer_epoch >= PRODUCER_EPOCH_MAX
        return Relation.LAST if is_last else Relation.OTHER_PRODUCER
    return Relation.OTHER_PRODUCER


def require_producer(
    txn: TransactionMetadata | None, identity: ProducerIdentity
) -> TransactionMetadata:
    """Return `txn` if `identity` is its current producer.

    INVALID_PRODUCER_ID_MAPPING: another producer id, or an unknown transactional id;
    PRODUCER_FENCED: another epoch (older request versions say INVALID_PRODUCER_EPOCH);
    CONCURRENT_TRANSACTIONS: the id that it will have once the markers still due are durable.
    """
    if txn is None:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "unknown transactional id")
    found = relation(txn, identity)
    if found is not Relation.CURRENT:
        raise refusal_of(txn, identity, found)
    return txn


def refusal_of(txn: TransactionMetadata, identity: ProducerIdentity, found: Relation) -> KafkaError:
    """Return why a producer that stands to `txn` as `found` may not do what only it may."""
    if found is Relation.NEXT:
        return KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS, f"{txn.transactional_id} is {txn.state.label}"
        )
    if identity.producer_id != txn.producer_id:
        return KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{txn.transactional_id}: producer id {identity.producer_id}, have {txn.producer_id}",
        )
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"{txn.transactional_id}: producer {identity.producer_id} is fenced at epoch"
        f" {identity.producer_epoch}, {txn.producer_epoch} is current",
    )


def prepare_bumped(
    txn: TransactionMetadata,
    state: State,
    now_ms: int,
    *,
    fresh_producer_id: int,
    last_producer_epoch: int,
    **changes: Any,
) -> TransactionMetadata:
    """Return the decision over ONGOING or VOTED `txn` at the next epoch; its `successor` may go on.

    `last_producer_epoch`: the epoch whose owner may learn the successor by asking again; -1: no
    producer may. `fresh_producer_id` is used up only where the epochs are: then it is the
    `next_producer_id`, and the markers carry 32767, which no client is given. A vote of version 2
    that used them up keeps 32767, and rotates to another producer id than its client was told.
    """
    if txn.state is State.VOTED and txn.producer_epoch > PRODUCER_EPOCH_MAX:
        changes |= {"next_producer_id": fresh_producer_id, "last_producer_epoch": NO_PRODUCER_EPOCH}
        return transition(txn, state, now_ms, **changes)
    if txn.producer_epoch > PRODUCER_EPOCH_MAX:
        raise AssertionError(f"{txn.transactional_id}: no epoch is left to fence with")
    if txn.is_epoch_exhausted:
        changes["next_producer_id"] = fresh_producer_id
    return transition(
        txn,
        state,
        now_ms,
        producer_epoch=txn.producer_epoch + 1,
        last_producer_epoch=last_producer_epoch,
        **changes,
    )


class Decide(Protocol[AnswerT]):
    """A rule about one transactional id.

    It is asked with the state of the id, and with a producer id that no client was ever given; -1
    where `takes_producer_id` says that none is needed. The producer id is used up where the
    decision's record carries it.
    """

    def __call__(
        self, txn: TransactionMetadata | None, *, fresh_producer_id: int
    ) -> Decision[TransactionMetadata, AnswerT]: ...


def takes_producer_id(txn: TransactionMetadata | None) -> bool:
    """Whether a decision over `txn` may need a fresh producer id: the first one of a
    transactional id, or the one that it rotates to."""
    if txn is None:
        return True
    # A decision that was made has the one that it rotates to.
    return txn.producer_epoch >= PRODUCER_EPOCH_MAX and txn.state not in PREPARED


def next_identity(txn: TransactionMetadata, fresh_producer_id: int) -> dict[str, int]:
    """Return the changes that give `txn`, with nothing open, the next epoch at once; where the
    epochs are used up, the fresh producer id."""
    if txn.is_epoch_exhausted:
        return {
            "producer_id": fresh_producer_id,
            "producer_epoch": 0,
            "previous_producer_id": txn.producer_id,
        }
    return {"producer_epoch": txn.producer_epoch + 1}
