"""Joint transactions: many producers write, one decides, and all of it becomes visible or none.

Pulsar lets many producers write in one transaction; Kafka's protocol does not, so names make a
family of producers. The transactional id `PARENT~>CHILD` is a child of `PARENT`: it lives in the
shard of its parent, and its commit is a *vote* (VOTED), which waits for the parent's decision.

- The parent's first operation in a transaction *seals* the votes. The seal holds while the parent
  is ONGOING, or decided with markers due. Under the seal no child begins, no vote is withdrawn or
  expires, and a child that commits late is aborted instead.
- The parent's commit is one record that names every vote. That record stands for the children too,
  until all markers are durable: the batch that then ends the parent also ends each child.
- A commit or an abort of the parent ends the whole family. A child that has not voted is aborted
  at a bumped epoch, so that none of its records can take part in the next decision. These aborts
  are in the batch of the decision.
- Without a decision of the parent only two things end a vote: InitProducerId of the same child, and
  the time of votes, which each begin and vote of a sibling renews (`expire`).

`joined` applies these rules to a decision about one id. An id without a family has no such rules.
Sources: Pulsar's transactions (PIP-31) for the idea; presumed abort (Mohan, Lindsay, Obermarck
1986) for a decision that is one record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from coordinator.decision import AnswerT, Decision
from coordinator.partitioning import partition_for
from coordinator.transactions.commit_plan import ended
from coordinator.transactions.epochs import prepare_bumped
from coordinator.transactions.metadata import PREPARED, State, TransactionMetadata, Vote
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

#: The longest id of a child, in UTF-8, and the most children of one parent that are open or have
#: voted: so a decision, which names them all, is at most some 10 MB.
ID_SIZE_BYTES_MAX = 1024
CHILDREN_MAX = 10_000

Txn = TransactionMetadata


class Kin(Protocol):
    """The families of one shard: what is known of each id, and the children of each parent."""

    def get(self, transactional_id: str, /) -> Txn | None:
        """Return what is known of an id, None if nothing."""
        ...

    def children(self, transactional_id: str) -> Mapping[str, Txn]:
        """Return the children of a parent that are ONGOING or VOTED, by transactional id."""
        ...


def parent_of(transactional_id: str, separator: str) -> str | None:
    """Return the parent's id that is in a child's id; None for an id that names no parent.

    Raises INVALID_REQUEST for an id that has a separator and cannot be a child's: it has a second
    separator, nothing on one side, or a character that cannot be printed, or it is too long. If
    `separator` is empty, there are no children.
    """
    if not separator or separator not in transactional_id:
        return None
    parent_id, _, child = transactional_id.partition(separator)
    reason = None
    if separator in child:
        reason = f"has more than one {separator!r}: a child has no children"
    elif not parent_id or not child:
        reason = f"has nothing {'before' if not parent_id else 'behind'} its {separator!r}"
    elif not transactional_id.isprintable():
        reason = "has characters that cannot be printed"
    elif len(transactional_id.encode()) > ID_SIZE_BYTES_MAX:
        reason = f"is longer than {ID_SIZE_BYTES_MAX} bytes"
    if reason is not None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"the transactional id {transactional_id[:80]!r} {reason}"
        )
    return parent_id


def coordinator_partition(transactional_id: str, separator: str, partition_count: int) -> int:
    """Return an id's partition of `__transaction_state`; a child has that of its parent."""
    # An id without the separator is its own family.
    family = transactional_id.partition(separator)[0] if separator else transactional_id
    return partition_for(family, partition_count)


def is_sealed(parent: Txn | None) -> bool:
    """Whether `parent` seals its votes: it is open, or decided with markers due."""
    return parent is not None and (parent.state is State.ONGOING or parent.state in PREPARED)


def joined(
    before: Txn | None,
    decision: Decision[Txn, AnswerT],
    kin: Kin,
    *,
    now_ms: int,
    take_producer_id: Callable[[], int],
    is_adoption: bool = False,
) -> Decision[Txn, AnswerT]:
    """Return a decision about one id, which was `before`, with what follows for the id's family.

    A decision that concerns no family comes back as it is. All records belong in one batch.
    `take_producer_id` returns a fresh producer id; it is called once for each child whose epochs
    are used up. Raises CONCURRENT_TRANSACTIONS if a child has to wait for its parent, or would be
    one too many.

    `is_adoption`: the transaction began before a crash, which left its data and lost the record of
    its begin. The crash may have lost the begin of the parent's transaction too. If that came later
    and is adopted first, its seal must not keep the child from beginning.
    """
    if not decision.records:
        return decision
    (decided,) = decision.records
    if decided.parent_id is not None:
        begins = decided.state is State.ONGOING and (
            before is None or before.state is not State.ONGOING
        )
        if begins and is_adoption:
            return decision
        return _joined_child(before, decision, begins, kin, now_ms, take_producer_id)
    children = kin.children(decided.transactional_id)
    if not children:
        return decision
    ended_children = _ended_children(before, decided, kin, now_ms, take_producer_id)
    votes = _votes(children.values())
    if decided.state is State.PREPARE_COMMIT and votes:
        decided = decided._replace(votes=votes)
    return replace(decision, records=(decided, *ended_children))


def _joined_child(
    before: Txn | None,
    decision: Decision[Txn, AnswerT],
    begins: bool,
    kin: Kin,
    now_ms: int,
    take_producer_id: Callable[[], int],
) -> Decision[Txn, AnswerT]:
    """Do as `joined` for a decision about a child. `begins`: the child opens a transaction."""
    (decided,) = decision.records
    assert decided.parent_id is not None
    if begins and len(kin.children(decided.parent_id)) >= CHILDREN_MAX:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"{decided.parent_id} has {CHILDREN_MAX} children that are open or have voted",
        )
    if not is_sealed(kin.get(decided.parent_id)):
        return decision
    if begins or (before is not None and before.state is State.VOTED):
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"{decided.transactional_id} has to wait for the end of {decided.parent_id}: try again",
        )
    # The seal is on: a vote that comes now would never be counted.
    if before is not None and decided.state is State.VOTED:
        return replace(decision, records=(_fenced(before, now_ms, take_producer_id),))
    return decision


def refusal_of_late_vote(txn: Txn) -> KafkaError | None:
    """Return PRODUCER_FENCED for a commit that `joined` turned into an abort, and for its retries.

    `txn` is what the EndTxn has decided. The client gets the refusal once the abort is durable.
    """
    if txn.parent_id is None or txn.state is not State.PREPARE_ABORT:
        return None
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"{txn.transactional_id} was aborted: it voted after {txn.parent_id} had begun",
    )


def _votes(children: Iterable[Txn]) -> tuple[Vote, ...]:
    return tuple(
        sorted(
            Vote(child.transactional_id, child.producer_id, child.producer_epoch)
            for child in children
            if child.state is State.VOTED
        )
    )


def _ended_children(
    before: Txn | None,
    decided: Txn,
    kin: Kin,
    now_ms: int,
    take_producer_id: Callable[[], int],
) -> Iterator[Txn]:
    """Yield the new values of the children that end in the step that makes the parent `decided`."""
    if before is None:
        return
    if decided.state is State.COMPLETE_COMMIT:
        for vote in before.votes:
            child = kin.get(vote.transactional_id)
            assert child is not None, f"{vote.transactional_id} has voted and is gone"
            yield ended(child, State.COMPLETE_COMMIT, now_ms)
        return
    # In transaction version 2 a client may abort when nothing is open: that aborts the votes too.
    is_abort = decided.state is State.PREPARE_ABORT or (
        decided.state is State.COMPLETE_ABORT and before.state is not State.PREPARE_ABORT
    )
    if not is_abort and decided.state is not State.PREPARE_COMMIT:
        return
    for child in kin.children(decided.transactional_id).values():
        if is_abort or child.state is not State.VOTED:
            yield _fenced(child, now_ms, take_producer_id)


def _fenced(child: Txn, now_ms: int, take_producer_id: Callable[[], int]) -> Txn:
    """Return the abort of a child at an epoch that no client is told."""
    return prepare_bumped(
        child,
        State.PREPARE_ABORT,
        now_ms,
        fresh_producer_id=take_producer_id() if child.is_epoch_exhausted else NO_PRODUCER_ID,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )
