"""TransactionMetadata: all that a coordinator knows of one transactional id, and the way it moves.

Immutable: the only way to another state is `transition`, and the only place it is put is the shard,
by applying a record that is in the log. Outcomes are kept (COMPLETE_*) until the next transaction
begins, so that an EndTxn retried after a lost answer is success.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Any, NamedTuple

from coordinator.transactions.states import PREDECESSORS, UNSETTLED, State
from coordinator.transactions.txn_id import COUNT_MAX, TxnId
from wire.error_code import ErrorCode
from wire.errors import KafkaError

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1

#: Transaction versions, as EndTxn's and Produce's versions tell them (KIP-890). A client that does
#: not speak version 2 is recorded as 0, as Kafka does; data and markers then have one epoch.
TRANSACTION_VERSION_1 = 0
TRANSACTION_VERSION_2 = 2

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


class Vote(NamedTuple):
    """One vote that a decision names: the child, and the identity that its marker carries."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


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
    """The epoch that the current one was bumped from with its owner still the owner: by an EndTxn
    of version 2, by the timeout, or at its wish; -1: another incarnation fenced it, or there was no
    bump. In PREPARE_* and COMPLETE_* it is, where it is not -1, the epoch of the transaction that
    ended, under `producer_id` or, once rotated, `previous_producer_id`."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before its epochs ran out and it was rotated."""
    next_producer_id: int = NO_PRODUCER_ID
    """In PREPARE_*: the producer id, from epoch 0, that COMPLETE_* rotates to."""
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    """Kafka's, for two-phase commit (KIP-939). Kept as it is read."""
    client_transaction_version: int = TRANSACTION_VERSION_1
    """What the client spoke that last wrote to or ended the transaction. From 2 on the marker
    of an end carries a later epoch than the data it ends."""
    parent_id: str | None = None
    """Of a child (`joint`): the transactional id whose decision its votes wait for. Fixed when the
    child is first seen, so that no later change of the separator tears a family apart."""
    votes: tuple[Vote, ...] = ()
    """In PREPARE_COMMIT of a parent: the votes that this decision commits, by transactional id."""

    @property
    def identity(self) -> ProducerIdentity:
        """The producer that may go on; every other epoch is fenced."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def successor(self) -> ProducerIdentity:
        """Who may go on once this transaction is COMPLETE_*."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the next epoch bump needs a fresh producer id."""
        return self.producer_epoch >= PRODUCER_EPOCH_MAX


#: As `_replace`, which takes twice as long and is asked three times per transaction.
_PLACES = {name: place for place, name in enumerate(TransactionMetadata._fields)}
_STATE, _UPDATED_AT_MS = _PLACES["state"], _PLACES["updated_at_ms"]


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
        is_last = txn.last_producer_epoch == producer_epoch == txn.producer_epoch - 1
        return Relation.LAST if is_last else Relation.OTHER_EPOCH
    if txn.state in UNSETTLED and identity == txn.successor:
        return Relation.NEXT
    if producer_id == txn.previous_producer_id and txn.producer_epoch == 0:
        is_last = txn.last_producer_epoch == producer_epoch >= PRODUCER_EPOCH_MAX
        return Relation.LAST if is_last else Relation.OTHER_PRODUCER
    return Relation.OTHER_PRODUCER


def transition(
    txn: TransactionMetadata, state: State, now_ms: int, **changes: Any
) -> TransactionMetadata:
    """Return `txn` in `state` as of `now_ms`, with `changes`. An illegal step is a broken rule of
    ours."""
    if txn.state not in PREDECESSORS[state]:
        raise AssertionError(f"{txn.transactional_id}: {txn.state.name} -> {state.name}")
    values: list[Any] = [*txn]
    values[_STATE], values[_UPDATED_AT_MS] = state, now_ms
    for name, value in changes.items():
        values[_PLACES[name]] = value
    return TransactionMetadata(*values)


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
