"""TransactionMetadata: all that a coordinator knows of one transactional id, and the way it moves.

Frozen: the only way to another state is `transition`, and the only place it is put is the shard,
by applying a record that is in the log. Outcomes are kept (COMPLETE_*) until the next transaction
begins, so that an EndTxn retried after a lost answer is success.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from coordinator.transactions.states import PREDECESSORS, State
from coordinator.transactions.txn_id import TxnId
from wire.error_code import ErrorCode
from wire.errors import KafkaError

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1

#: The highest epoch a client is given. One above it is left, for the fence of its last transaction.
PRODUCER_EPOCH_MAX = 32766


class TopicPartition(NamedTuple):
    """A partition by its topic's name; equal to the plain tuple (topic, partition)."""

    topic: str
    partition: int


class ProducerIdentity(NamedTuple):
    """Who a producer says it is: equal ids with a higher epoch fence the lower ones."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """One transactional id: its producer, and its current or last transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    updated_at_ms: int
    started_at_ms: int = NO_TIMESTAMP
    """When the current or last transaction began; -1 before the first."""
    partitions: frozenset[TopicPartition] = frozenset()
    """What the open transaction may have written to; empty once it has ended."""
    txn_id: TxnId | None = None
    """The current or last transaction; None before the first."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch that the current one was bumped from at its owner's wish; -1: it was fenced."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before its epochs ran out and it was rotated."""
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    client_transaction_version: int = 0

    @property
    def identity(self) -> ProducerIdentity:
        """The producer that may go on; every other epoch is fenced."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the next epoch bump needs a fresh producer id."""
        return self.producer_epoch >= PRODUCER_EPOCH_MAX


def transition(
    txn: TransactionMetadata, state: State, now_ms: int, **changes: Any
) -> TransactionMetadata:
    """Return `txn` in `state` as of `now_ms`, with `changes`. An illegal step is a broken rule of
    ours."""
    if txn.state not in PREDECESSORS[state]:
        raise AssertionError(f"{txn.transactional_id}: {txn.state.name} -> {state.name}")
    return replace(txn, state=state, updated_at_ms=now_ms, **changes)


def require_producer(
    txn: TransactionMetadata | None, identity: ProducerIdentity
) -> TransactionMetadata:
    """Return `txn` if `identity` is its current producer.

    INVALID_PRODUCER_ID_MAPPING: another producer id, or an unknown transactional id;
    PRODUCER_FENCED: another epoch (older request versions say INVALID_PRODUCER_EPOCH).
    """
    if txn is None:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "unknown transactional id")
    if identity.producer_id != txn.producer_id:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{txn.transactional_id}: producer id {identity.producer_id}, have {txn.producer_id}",
        )
    if identity.producer_epoch != txn.producer_epoch:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED,
            f"{txn.transactional_id}: epoch {identity.producer_epoch}, have {txn.producer_epoch}",
        )
    return txn
