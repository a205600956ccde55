"""Deadlines: old transactions and undecided votes are aborted, ids long unused are forgotten.

All are exact points in time, so that the runtime sleeps until the next one and never sweeps.
Sources: KIP-98 (transaction.timeout.ms, transactional.id.expiration.ms), KIP-360.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.decision import Decision
from coordinator.transactions.epochs import prepare_bumped
from coordinator.transactions.joint import is_sealed
from coordinator.transactions.metadata import PREPARED, State, TransactionMetadata, transition
from wire.records.header import NO_PRODUCER_EPOCH


class Lifetimes(NamedTuple):
    """How long an idle id, an idle child and an undecided vote are kept."""

    transactional_id_ms: int
    """transactional.id.expiration.ms"""
    child_ms: int
    """joint.child.expiration.ms"""
    vote_ms: int
    """joint.vote.timeout.ms, from the last change of an open or voted child of the same parent"""


class Term(NamedTuple):
    """A time that runs, by the wall clock of the broker that wrote its beginning."""

    due_ms: int
    """When the time is over."""
    lasts_ms: int
    """All of the time."""

    def left_ms(self, now_ms: int) -> int:
        """Return how much of the time is left, never more than all of it.

        The clock may have been ahead when the beginning was written: that lies in the future then.
        """
        return min(self.due_ms - now_ms, self.lasts_ms)


def term_of(
    txn: TransactionMetadata,
    lifetimes: Lifetimes,
    parent: TransactionMetadata | None = None,
    newest: TransactionMetadata | None = None,
) -> Term | None:
    """Return the time after which `expire` has something to decide; None while others have to.

    Markers are due, or a vote is sealed: its parent decides. `newest`: the open or voted child of
    the same parent that changed last. It renews the votes of the others, so the first vote of a
    long round is still there when the last one comes.
    """
    if txn.state is State.ONGOING:
        return Term(txn.started_at_ms + txn.timeout_ms, txn.timeout_ms)
    if txn.state in PREPARED:
        return None
    if txn.state is State.VOTED:
        if is_sealed(parent):
            return None
        renewed_ms = txn.updated_at_ms if newest is None else newest.updated_at_ms
        since_ms = max(txn.updated_at_ms, renewed_ms)
        return Term(since_ms + lifetimes.vote_ms, lifetimes.vote_ms)
    idle_ms = lifetimes.transactional_id_ms if txn.parent_id is None else lifetimes.child_ms
    return Term(txn.updated_at_ms + idle_ms, idle_ms)


def expire(
    txn: TransactionMetadata | None,
    lifetimes: Lifetimes,
    now_ms: int,
    *,
    parent: TransactionMetadata | None = None,
    newest: TransactionMetadata | None = None,
    fresh_producer_id: int,
) -> Decision[TransactionMetadata, None]:
    """Decide what is due at `now_ms`, if anything.

    ONGOING past its timeout: aborted at a bumped epoch, so that its late producer meets
    PRODUCER_FENCED and cannot go on in a transaction that is gone. No other incarnation took over,
    so a client that names the old epoch is told the new one, by InitProducerId or, under version 2,
    by the EndTxn that aborts, as in Kafka. `fresh_producer_id`: as `epochs.prepare_bumped`.
    A vote that its parent did not decide is aborted likewise, and its producer fenced for good.
    `newest`: as `term_of`.
    Unused past transactional.id.expiration.ms, a child past its own: DEAD, a tombstone.
    """
    term = None if txn is None else term_of(txn, lifetimes, parent, newest)
    # The alarm may ring early, and the id may have gone on since it was set.
    if txn is None or term is None or now_ms < term.due_ms:
        return Decision(answer=None)
    if txn.state in (State.ONGOING, State.VOTED):
        is_vote = txn.state is State.VOTED
        aborted = prepare_bumped(
            txn,
            State.PREPARE_ABORT,
            now_ms,
            fresh_producer_id=fresh_producer_id,
            # A vote was answered as a commit: its producer must not go on as if it had not been.
            last_producer_epoch=NO_PRODUCER_EPOCH if is_vote else txn.producer_epoch,
        )
        return Decision(records=(aborted,), answer=None)
    return Decision(records=(transition(txn, State.DEAD, now_ms),), answer=None)
