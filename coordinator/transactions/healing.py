"""Healing: what becomes of an open transaction that a partition holds, by the epoch of its data.

A partition knows an open transaction, or pending acks of one, as (producer id, producer epoch) and
nothing more. Compared with what the coordinator knows of that producer id:

    decided, markers due (PREPARE_*)      left alone: `work_due` brings the marker
    a vote, undecided (VOTED)             left alone: its parent or its time will decide
    epoch of the current producer         its current transaction: left alone while held; adopted
                                          (added, ONGOING) where its add was lost in a crash
    epoch of the last ended transaction   ended as recorded: COMMIT or ABORT
    any other, or an unknown producer id  ABORT

Why that is sound. Markers are durable before COMPLETE_* is, or with it, and a partition takes data
only of an ONGOING transaction that holds it. So when the log says COMPLETE_*, nothing that the
coordinator knew of is open, and open data of the *same* epoch belongs to a transaction after it,
begun in a step whose record a crash has lost. Such data is adopted and never aborted directly: its
producer was not answered, so it will send the batch again, and the partition would take that for a
duplicate of aborted bytes and answer success. The client ends it, or the timeout does, at a bumped
epoch. Data of the ended transaction's own epoch, where an end bumps it (transaction version 2, a
timeout, a fence), was appended in a step whose add was lost: no client was told that it is there,
and it shares its transaction's outcome. Every other epoch is fenced: no producer can send its
batches again. None of them was committed: a commit would have left its marker. So the abort harms
no client and frees all readers.

Nothing may be decided from a state that a power loss could take back: the caller waits until what
it was shown is durable, and asks again. Source: Pulsar (low watermark of transaction buffers),
KIP-664, KIP-890.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from coordinator.transactions.metadata import (
    PREPARED,
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
)

#: Kafka keeps the epoch in an int16: there is none above it.
_EPOCH_MAX = 32767


class Remedy(Enum):
    """What is to be done about one open transaction in one partition."""

    LEAVE = "left alone"
    ADOPT = "adopted"
    COMMIT = "committed"
    ABORT = "aborted"

    @property
    def is_act(self) -> bool:
        """Whether anything is to be done."""
        return self is not Remedy.LEAVE


class Verdict(NamedTuple):
    """A remedy and why."""

    remedy: Remedy
    reason: str


_DECIDED = Verdict(Remedy.LEAVE, "its markers are under way")
_UNDECIDED = Verdict(Remedy.LEAVE, "its vote waits for the decision")
_UNANSWERED = Verdict(Remedy.LEAVE, "a node that may coordinate it does not answer")
_HELD = Verdict(Remedy.LEAVE, "its transaction is open")
_ADD_LOST = Verdict(Remedy.ADOPT, "its add was lost in a crash")
_COMMITTED = Verdict(Remedy.COMMIT, "its transaction was committed")
_ABORTED = Verdict(Remedy.ABORT, "its transaction was aborted")
_FENCED = Verdict(Remedy.ABORT, "its epoch is fenced")
_UNKNOWN = Verdict(Remedy.ABORT, "its producer is unknown to every coordinator")

_ENDED_AS = {State.COMPLETE_COMMIT: _COMMITTED, State.COMPLETE_ABORT: _ABORTED}


def heal(
    txn: TransactionMetadata | None,
    data: ProducerIdentity,
    partition: TopicPartition,
    *,
    are_all_asked: bool = True,
) -> Verdict:
    """Decide what becomes of data of `data` that is open in `partition`.

    `txn` is what the coordinator knows of that producer id, current or previous; None: nothing.
    `are_all_asked`: whether every node that coordinates transactions has answered.
    """
    if txn is None:
        return _UNKNOWN if are_all_asked else _UNANSWERED
    if txn.state in PREPARED:
        return _DECIDED
    if txn.state is State.VOTED:
        return _UNDECIDED
    # The current epoch is compared first. Under version 1 the last ended epoch is equal to it, and
    # open data of that epoch belongs to the later transaction (see above).
    if data == txn.identity:
        is_held = txn.state is State.ONGOING and partition in txn.partitions
        return _HELD if is_held else _ADD_LOST
    if data == last_ended(txn):
        return _ENDED_AS[txn.state]
    return _FENCED


def last_ended(txn: TransactionMetadata) -> ProducerIdentity | None:
    """Return the producer of the data in the last ended transaction; None where no outcome is kept.

    The TxnId names that producer, whatever the end made of its identity: the epoch may have been
    bumped by the end (transaction version 2), by a timeout or by a fence, the producer id rotated.
    """
    if txn.state not in _ENDED_AS or txn.txn_id is None:
        return None
    return ProducerIdentity(txn.txn_id.producer_id, txn.txn_id.producer_epoch)


def marker_epoch(data: ProducerIdentity) -> int:
    """Return the epoch of the marker that ends `data`: one above, so that it stays ended.

    The producer that is current now has that epoch or a later one, so it is not fenced.
    """
    return min(data.producer_epoch + 1, _EPOCH_MAX)
