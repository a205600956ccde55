"""What a decision still owes, and in which order it is carried out: one table.

A decision owes a marker to every partition that the transaction holds. COMPLETE_* in the log means
that nothing of the transaction is open anywhere. So COMPLETE_* is written

- as the decision itself, with all markers, where a crash leaves all of them or none
  (`Plan.ONE_RECORD`);
- else after PREPARE_*, once all markers are durable, which may take many steps where they are
  many (`Plan.IN_SLICES`), and time where another node has to append them: at the next request for
  the id, or soon (`magnetar.runtime.commit` has the moment);
- at once by an abort of nothing under version 2, which owes no marker (`end_txn`).

What a state owes (`work_due`) is derived from the state and from nothing else. A restart is replay
and then this question for every transactional id: there is no second way of recovery. Doing the
work twice is harmless: what a partition has closed stays closed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import NamedTuple

from coordinator.decision import Decision, Urgency
from coordinator.transactions.metadata import (
    NO_PRODUCER_ID,
    TRANSACTION_VERSION_1,
    State,
    TopicPartition,
    TransactionMetadata,
    Vote,
    transition,
)

#: The most markers that one step of the event loop appends: two or three milliseconds, in which the
#: broker serves no other client.
MARKERS_AT_ONCE_MAX = 100


class Part(Enum):
    """What a plan appends."""

    PREPARE = "PREPARE_*"
    """The decision, which names the partitions that are owed a marker."""
    MARKERS = "markers"
    """To every partition that the transaction holds; to empty ones too, as Kafka, so that offsets
    agree."""
    SLICES = "markers in slices"
    """The same markers, at most MARKERS_AT_ONCE_MAX of them in one step of the event loop."""
    MISSING_MARKERS = "missing markers"
    """To the partitions in which the producer still has something open."""
    ELSEWHERE = "markers elsewhere"
    """To the partitions that other nodes lead, and only they append to."""
    COMPLETE = "COMPLETE_*"
    """Nothing is open."""


class Plan(Enum):
    """The steps that carry out a decision.

    All parts of a step are appended in one step of the event loop. The next step begins when they
    are durable. The transaction is visible when its markers are.
    """

    ONE_RECORD = ((Part.COMPLETE, Part.MARKERS),)
    """COMPLETE_* is the decision itself: a crash leaves it with all markers, or nothing."""
    MARKERS_WITH_DECISION = ((Part.PREPARE, Part.MARKERS), (Part.COMPLETE,))
    """No crash leaves a marker without its decision, and PREPARE_* names what may be missing."""
    OWN_WITH_DECISION = ((Part.PREPARE, Part.MARKERS), (Part.ELSEWHERE,), (Part.COMPLETE,))
    """Partitions of this node as in MARKERS_WITH_DECISION. No other node appends a marker before
    the decision is durable: a crash here would leave it without one."""
    DECISION_FIRST = ((Part.PREPARE,), (Part.MARKERS,), (Part.COMPLETE,))
    """Needs no promise about two logs. Here and in the plans below other nodes append theirs after
    the markers of this node: each has the decision before all markers."""
    IN_SLICES = ((Part.PREPARE,), (Part.SLICES,), (Part.COMPLETE,))
    """Other clients are served between two slices. So the decision has to be durable before the
    first: a reader may see one partition's marker before another partition has its own."""
    REDRIVE = ((Part.MISSING_MARKERS,), (Part.COMPLETE,))
    """A restart found PREPARE_*, which is durable."""

    def __init__(self, *steps: tuple[Part, ...]) -> None:
        #: What is appended in the step of the decision.
        self.first = steps[0]


class Storage(Enum):
    """What a crash leaves of the appends of one step to the logs that take part."""

    ALL_OR_NOTHING = auto()
    """All of them, or none: the journal."""
    IN_ORDER = auto()
    """Those before some point: the page cache or memory, which outlive the process or do not."""
    APART = auto()
    """Any of them: a sync of each file."""


class Decided(Enum):
    """What the plan of a decision depends on besides the storage."""

    VERSION_1 = auto()
    """The epoch stays. The next transaction waits for COMPLETE_*, so it had better be early."""
    VERSION_2 = auto()
    """The epoch is bumped. Requests that race with the end meet PREPARE_*, as in Kafka."""
    WITH_OTHERS = auto()
    """The markers of others go before COMPLETE_*: of votes, of aborted children, or of an earlier
    end of the same id."""
    LARGE = auto()
    """More than MARKERS_AT_ONCE_MAX markers."""
    OVER_NODES = auto()
    """Another node leads one of the partitions, so nothing can be one record with its marker."""


#: The one table of how a decision is carried out.
PLANS: dict[tuple[Storage, Decided], Plan] = {
    (Storage.ALL_OR_NOTHING, Decided.VERSION_1): Plan.ONE_RECORD,
    (Storage.ALL_OR_NOTHING, Decided.VERSION_2): Plan.MARKERS_WITH_DECISION,
    (Storage.ALL_OR_NOTHING, Decided.WITH_OTHERS): Plan.MARKERS_WITH_DECISION,
    (Storage.IN_ORDER, Decided.VERSION_1): Plan.MARKERS_WITH_DECISION,
    (Storage.IN_ORDER, Decided.VERSION_2): Plan.MARKERS_WITH_DECISION,
    (Storage.IN_ORDER, Decided.WITH_OTHERS): Plan.MARKERS_WITH_DECISION,
    (Storage.APART, Decided.VERSION_1): Plan.DECISION_FIRST,
    (Storage.APART, Decided.VERSION_2): Plan.DECISION_FIRST,
    (Storage.APART, Decided.WITH_OTHERS): Plan.DECISION_FIRST,
    (Storage.ALL_OR_NOTHING, Decided.LARGE): Plan.IN_SLICES,
    (Storage.IN_ORDER, Decided.LARGE): Plan.IN_SLICES,
    (Storage.APART, Decided.LARGE): Plan.IN_SLICES,
    (Storage.ALL_OR_NOTHING, Decided.OVER_NODES): Plan.OWN_WITH_DECISION,
    (Storage.IN_ORDER, Decided.OVER_NODES): Plan.OWN_WITH_DECISION,
    (Storage.APART, Decided.OVER_NODES): Plan.DECISION_FIRST,
}


class MarkerWork(NamedTuple):
    """Markers of one outcome that every listed partition must hold durably before COMPLETE_*."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: Collection[TopicPartition]
    transaction_version: int = TRANSACTION_VERSION_1
    """From 2 on the marker's epoch is later than that of the data it ends: checked there."""
    votes: tuple[MarkerWork, ...] = ()
    """The markers of each vote that a parent's commit names."""

    @property
    def marker_count(self) -> int:
        """The number of markers, those of the votes included."""
        return sum(len(one.partitions) for one in (self, *self.votes))

    @property
    def completion(self) -> Urgency:
        """How soon COMPLETE_* has to be durable once the markers are.

        Under version 1 data of the next transaction waits for it: its epoch does not tell it from
        the data of the transaction that ended (docs/decisions/0007). Under version 2 it does.
        """
        if self.transaction_version == TRANSACTION_VERSION_1:
            return Urgency.AWAITED
        if self.votes and any(vote.completion is Urgency.AWAITED for vote in self.votes):
            return Urgency.AWAITED
        return Urgency.RELAXED


Find = Callable[[str], TransactionMetadata | None]

#: Whether this node leads a partition: then its marker can be appended in the step of a decision.
LedHere = Callable[[TopicPartition], bool]


def work_due(txn: TransactionMetadata, find: Find | None = None) -> MarkerWork | None:
    """Return the markers that the decision in `txn` calls for, None where nothing is owed.

    `find` looks transactional ids up, for the votes that the decision names.
    """
    commit = txn.state is State.PREPARE_COMMIT
    if not commit and txn.state is not State.PREPARE_ABORT:
        return None
    return MarkerWork(
        txn.transactional_id,
        txn.producer_id,
        txn.producer_epoch,
        commit,
        txn.partitions,
        txn.client_transaction_version,
        tuple(_of_vote(vote, find) for vote in txn.votes) if txn.votes else (),
    )


def _of_vote(vote: Vote, find: Find | None) -> MarkerWork:
    """Return what a decided vote calls for: the markers of its own commit.

    The child cannot be gone: it is sealed, and stands before the decision in the same log.
    """
    child = None if find is None else find(vote.transactional_id)
    if child is None or child.state is not State.VOTED or child.identity != vote[1:]:
        raise AssertionError(f"{vote.transactional_id}: its decided vote is {child}")
    # The child has no record of its own decision (`joint`), but owes what that record would.
    work = work_due(child._replace(state=State.PREPARE_COMMIT))
    assert work is not None, f"{vote.transactional_id}: a decided vote owes its markers"
    return work


class Planned(NamedTuple):
    """The records of a decision as they are appended, and the work that follows."""

    records: tuple[TransactionMetadata, ...]
    work: tuple[MarkerWork, ...] = ()
    """What is owed, that of the decided id last: the others are to be done before it is."""
    plan: Plan = Plan.DECISION_FIRST
    """How each of `work` is carried out."""


def planned(
    records: tuple[TransactionMetadata, ...],
    storage: Storage,
    find: Find,
    *,
    is_ending: bool,
    is_led_here: LedHere | None = None,
) -> Planned:
    """Plan the decision over `records[0]`; the others are those of its children (`joint`).

    `is_ending`: an earlier end of the id is still being carried out. `is_led_here`: None where
    this node leads every partition.
    """
    decided, *children = records
    work = [due for child in children if (due := work_due(child, find)) is not None]
    own = work_due(decided, find)
    if own is None and work:
        # The abort of nothing: its client waits for the children that it aborts.
        own = MarkerWork(decided.transactional_id, *decided.identity, commit=False, partitions=())
    if own is None:
        return Planned(records)
    kind = Decided.VERSION_2
    count = len(own.partitions)
    if work or own.votes:
        count = sum(one.marker_count for one in (own, *work))
    if count > MARKERS_AT_ONCE_MAX:
        kind = Decided.LARGE
    elif is_led_here is not None and _reaches_out((*work, own), is_led_here):
        kind = Decided.OVER_NODES
    elif work or own.votes or is_ending:
        kind = Decided.WITH_OTHERS
    elif own.transaction_version == TRANSACTION_VERSION_1:
        kind = Decided.VERSION_1
    plan = PLANS[storage, kind]
    if plan is Plan.ONE_RECORD:
        records = (ended(decided, _COMPLETED[decided.state], decided.updated_at_ms),)
    return Planned(records, (*work, own), plan)


def _reaches_out(works: tuple[MarkerWork, ...], is_led_here: LedHere) -> bool:
    """Return whether a marker of `works`, or of their votes, is another node's to append."""
    return not all(
        is_led_here(partition)
        for work in works
        for one in (work, *work.votes)
        for partition in one.partitions
    )


_COMPLETED = {
    State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
    State.PREPARE_ABORT: State.COMPLETE_ABORT,
}


def complete(
    txn: TransactionMetadata | None, done: MarkerWork, now_ms: int
) -> Decision[TransactionMetadata, None]:
    """Decide that `done` was all that `txn` owed. Nothing to log for work of another
    transaction.

    Where the producer's epochs are used up it goes on with the producer id kept for it.
    """
    worked_for = (done.producer_id, done.producer_epoch)
    # The id may have gone on, or be gone: its later transaction must not be ended with this one.
    if txn is None or (txn.producer_id, txn.producer_epoch) != worked_for:
        return Decision(answer=None)
    completed = _COMPLETED.get(txn.state)
    if completed is None:
        return Decision(answer=None)
    return Decision(records=(ended(txn, completed, now_ms),), answer=None)


def ended(txn: TransactionMetadata, completed: State, now_ms: int) -> TransactionMetadata:
    """Return `txn` in `completed`: nothing of it is open, and its producer may go on."""
    changes: dict[str, int] = {}
    if txn.next_producer_id != NO_PRODUCER_ID:
        changes = {
            "producer_id": txn.next_producer_id,
            "producer_epoch": 0,
            "previous_producer_id": txn.producer_id,
            "next_producer_id": NO_PRODUCER_ID,
        }
    return transition(txn, completed, now_ms, partitions=frozenset(), votes=(), **changes)
