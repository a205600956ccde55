"""TransactionMetadata: all that a coordinator knows of one transactional id, and the way it moves.

Immutable. The only way to another state is `transition`, along `PREDECESSORS`; the only place of a
value is the shard, by applying a record that is in the log. Outcomes are kept (COMPLETE_*) until
the next transaction begins, so that an EndTxn retried after a lost answer is success.

States have Kafka's names and ids. A `TxnId` is the 128-bit name of one transaction, never reused
(the idea is Pulsar's TxnID): Kafka's transactional id names every transaction of a producer.
Sources: KIP-98, KIP-360, KIP-890; org.apache.kafka.coordinator.transaction.TransactionState.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

#: Transaction versions, as the versions of EndTxn and Produce tell them (KIP-890). Under version 1
#: data and markers have one epoch. In `__transaction_state` Kafka writes 0 for it: see `records`.
TRANSACTION_VERSION_1 = 1
TRANSACTION_VERSION_2 = 2

#: The highest epoch a client is given. One above it is left, for the fence of its last transaction.
PRODUCER_EPOCH_MAX = 32766


class State(IntEnum):
    """Where a transactional id stands; the number is what `__transaction_state` holds."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Expired. Written as a tombstone, so never found in a value."""
    PREPARE_EPOCH_FENCE = 7
    """Kafka's, between a fence and its abort; one record holds both here, so it is never
    entered."""
    VOTED = 100
    """Ours (`joint`): a child's commit, which its parent's decision will carry out or abort.
    Written as ONGOING with a tagged field, so that Kafka's tools read it."""

    @property
    def label(self) -> str:
        """Kafka's spelling, as its tools show it: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def told_as(self) -> State:
        """The state that clients are told: one of Kafka's, since some refuse any other."""
        return State.ONGOING if self is State.VOTED else self


#: Nothing of the transaction is open, and its outcome is remembered.
ENDED = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})

#: state -> the states it may be entered from. Nothing else is ever appended.
PREDECESSORS: dict[State, frozenset[State]] = {
    State.EMPTY: ENDED | {State.EMPTY},
    State.ONGOING: ENDED | {State.EMPTY, State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: frozenset({State.ONGOING, State.PREPARE_EPOCH_FENCE, State.VOTED}),
    # From VOTED: the decision is its parent's record.
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT, State.VOTED}),
    # From EMPTY or an ended one: the abort of a transaction that wrote nothing (version 2).
    State.COMPLETE_ABORT: ENDED | {State.EMPTY, State.PREPARE_ABORT},
    State.DEAD: ENDED | {State.EMPTY},
    State.PREPARE_EPOCH_FENCE: frozenset({State.ONGOING}),
    State.VOTED: frozenset({State.ONGOING}),
}

#: The decision is made and logged, the markers are not all durable.
PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE})

#: Its producer can do nothing more about the transaction, nor begin the next one yet.
UNFINISHED = PREPARED | {State.VOTED}


class TopicPartition(NamedTuple):
    """A partition by its topic's name; equal to the plain tuple (topic, partition)."""

    topic: str
    partition: int


class ProducerIdentity(NamedTuple):
    """Names a producer. A higher epoch fences the lower ones of the same producer id."""

    producer_id: int
    producer_epoch: int


class Vote(NamedTuple):
    """One vote that a decision names: the child, and the identity that its marker carries."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


COUNT_MAX = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class TxnId:
    """One transaction."""

    coordinator_partition: int
    producer_epoch: int
    count: int
    producer_id: int

    def to_bytes(self) -> bytes:
        """Return the 16 bytes, most significant first."""
        high = self.coordinator_partition << 48 | self.producer_epoch << 32 | self.count
        return (high << 64 | self.producer_id).to_bytes(16, "big")

    @classmethod
    def from_bytes(cls, value: bytes) -> TxnId:
        """Return the id whose `to_bytes` are the 16 bytes of `value`."""
        bits = int.from_bytes(value, "big")
        return cls(
            coordinator_partition=bits >> 112,
            producer_epoch=bits >> 96 & 0xFFFF,
            count=bits >> 64 & COUNT_MAX,
            producer_id=bits & 0xFFFF_FFFF_FFFF_FFFF,
        )

    def __str__(self) -> str:
        return (
            f"{self.coordinator_partition:04x}-{self.producer_epoch:04x}"
            f"-{self.count:08x}-{self.producer_id:016x}"
        )


class TransactionMetadata(NamedTuple):
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
    """The epoch before the last bump, where that bump fenced no other incarnation: an EndTxn of
    version 2 did it, the timeout, or the producer's own InitProducerId. -1: another incarnation
    fenced the producer, or there was no bump. Where PREPARE_* and COMPLETE_* have one, it is the
    epoch of the transaction that ended. Its producer id is `producer_id`, or
    `previous_producer_id` once that was rotated."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before its epochs ran out and it was rotated."""
    next_producer_id: int = NO_PRODUCER_ID
    """In PREPARE_*: the producer id, from epoch 0, that COMPLETE_* rotates to."""
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    """Kafka's, for two-phase commit (KIP-939). Kept as it is read."""
    client_transaction_version: int = TRANSACTION_VERSION_1
    """The version of the client that last wrote to or ended the transaction. From 2 on the
    marker of an end carries a later epoch than the data it ends."""
    parent_id: str | None = None
    """The transactional id whose decision a child's votes wait for (`joint`). It is fixed when the
    child is first seen, so that no later change of the separator tears a family apart."""
    votes: tuple[Vote, ...] = ()
    """In PREPARE_COMMIT of a parent: the votes that this decision commits, by transactional id."""

    @property
    def identity(self) -> ProducerIdentity:
        """The producer that may go on; every other epoch is fenced."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def successor(self) -> ProducerIdentity:
        """The producer that may go on once this transaction is COMPLETE_*."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the next epoch bump needs a fresh producer id."""
        return self.producer_epoch >= PRODUCER_EPOCH_MAX


#: For `transition`, through which each transaction passes three times: `_replace` takes twice as
#: long.
_PLACES = {name: place for place, name in enumerate(TransactionMetadata._fields)}
_STATE, _UPDATED_AT_MS = _PLACES["state"], _PLACES["updated_at_ms"]


def transition(
    txn: TransactionMetadata, state: State, now_ms: int, **changes: Any
) -> TransactionMetadata:
    """Return `txn` in `state` as of `now_ms`, with `changes`.

    A step that `PREDECESSORS` does not have is a bug: AssertionError.
    """
    if txn.state not in PREDECESSORS[state]:
        raise AssertionError(f"{txn.transactional_id}: {txn.state.name} -> {state.name}")
    values: list[Any] = [*txn]
    values[_STATE], values[_UPDATED_AT_MS] = state, now_ms
    for name, value in changes.items():
        values[_PLACES[name]] = value
    # Not the constructor, which is Python: the list has a value for every field.
    return tuple.__new__(TransactionMetadata, values)


def next_txn_id(txn: TransactionMetadata, coordinator_partition: int) -> TxnId:
    """Return the id of the transaction that begins: one more within the epoch, or its first.

    An epoch that has counted 2**32 transactions is refused: its producer takes a new one.
    """
    last = txn.txn_id
    count = 0
    current = (txn.producer_id, txn.producer_epoch)
    if last is not None and (last.producer_id, last.producer_epoch) == current:
        count = last.count + 1
    if count > COUNT_MAX:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED, f"{txn.transactional_id}: its epoch has no transaction left"
        )
    return TxnId(coordinator_partition, txn.producer_epoch, count, txn.producer_id)
