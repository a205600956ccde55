"""Which markers a decision owes, and in which order its records are written: one table.

A decision owes a marker to every partition that the transaction holds. COMPLETE_* in the log means
that no partition has anything of the transaction open. So COMPLETE_* is written at one of three
moments:

- In the step of the decision, together with all markers, where a crash leaves all of these records
  or none (`Plan.ONE_RECORD`). COMPLETE_* is then the decision itself.
- After PREPARE_*, once all markers are durable. Many markers take many steps (`Plan.IN_SLICES`),
  and markers of other nodes take time. `magnetar.runtime.completions` writes COMPLETE_* at the next
  request for the transactional id, or after a short delay.
- At once, where version 2 aborts a transaction without partitions: no marker is owed (`end_txn`).

What a state owes (`work_due`) is derived from the state alone. A restart replays the log and then
asks `work_due` for every transactional id; there is no other recovery. Doing the work twice is
harmless: a partition in which the transaction has ended stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple

from coordinator.decision import Decision, Urgency
from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    State,
    TopicPartition,
    TransactionMetadata,
    Vote,
    transition,
)
from wire.records.header import NO_PRODUCER_ID

#: The most markers that one step of the event loop appends. So many take two or three milliseconds,
#: and the broker serves no other client meanwhile.
MARKERS_AT_ONCE_MAX = 100
#: The most of these that make or open files: each of them takes as long as some twenty others.
MAKING_FILES_AT_ONCE_MAX = 3


class Part(Enum):
    """What a plan appends."""

    PREPARE = "PREPARE_*"
    """The decision, which names the partitions that are owed a marker."""
    MARKERS = "markers"
    """One to every partition that the transaction holds. An empty partition gets its marker too, as
    in Kafka, so that the offsets of both are equal."""
    SLICES = "markers in slices"
    """The same markers, at most MARKERS_AT_ONCE_MAX of them in one step of the event loop."""
    MISSING_MARKERS = "missing markers"
    """One to each partition in which the producer's transaction is still open."""
    ELSEWHERE = "markers elsewhere"
    """One to each partition that another node leads. Only that node appends to the partition."""
    COMPLETE = "COMPLETE_*"
    """The record which says that nothing of the transaction is open."""


class Plan(Enum):
    """The steps that carry out a decision.

    All parts of one step of a plan are appended in one step of the event loop. The next step begins
    when these parts are durable. The transaction is visible once all its markers are durable.
    """

    ONE_RECORD = ((Part.COMPLETE, Part.MARKERS),)
    """COMPLETE_* is the decision itself: a crash leaves this record and all markers, or nothing."""
    MARKERS_WITH_DECISION = ((Part.PREPARE, Part.MARKERS), (Part.COMPLETE,))
    """No crash leaves a marker without its decision, and PREPARE_* names the partitions whose
    markers may be missing."""
    OWN_WITH_DECISION = ((Part.PREPARE, Part.MARKERS), (Part.ELSEWHERE,), (Part.COMPLETE,))
    """Partitions of this node are marked as in MARKERS_WITH_DECISION. Other nodes append their
    markers only when the decision is durable: else a crash of this node could leave those markers
    without a decision."""
    DECISION_FIRST = ((Part.PREPARE,), (Part.MARKERS,), (Part.COMPLETE,))
    """Needs no promise that two logs keep together. Here and in the plans below, the markers of
    other nodes follow those of this node: the decision is durable before any marker is appended."""
    IN_SLICES = ((Part.PREPARE,), (Part.SLICES,), (Part.COMPLETE,))
    """Other clients are served between two slices, and may read one partition's marker before
    another partition has its own. So the decision is durable before the first slice."""
    REDRIVE = ((Part.MISSING_MARKERS,), (Part.COMPLETE,))
    """For a restart that found PREPARE_* in the log: the decision is durable."""

    def __init__(self, *steps: tuple[Part, ...]) -> None:
        #: What is appended in the step of the decision.
        self.first = steps[0]


class Storage(Enum):
    """What a crash leaves of one step's appends to several logs."""

    ALL_OR_NOTHING = auto()
    """All appends of the step, or none: a journal record holds them together."""
    IN_ORDER = auto()
    """The appends before some moment, and none after it: the page cache or memory, which a crash
    keeps as a whole or loses as a whole."""
    APART = auto()
    """Any of the appends: each file is synced by itself."""


class Decided(Enum):
    """The kind of a decision: with the storage, it chooses the plan."""

    VERSION_1 = auto()
    """The epoch stays. The next transaction waits for COMPLETE_*, so an early one is better."""
    VERSION_2 = auto()
    """The epoch is bumped. Requests that race with the end meet PREPARE_*, as in Kafka."""
    WITH_OTHERS = auto()
    """COMPLETE_* has to wait for other markers too: those of votes, of aborted children, or of an
    earlier end of the same transactional id."""
    LARGE = auto()
    """More than MARKERS_AT_ONCE_MAX markers, or more than MAKING_FILES_AT_ONCE_MAX that make or
    open files."""
    OVER_NODES = auto()
    """Another node leads one of the partitions, so no journal record of this node can hold all
    markers."""


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
    """The markers of one outcome. All of them must be durable before COMPLETE_* is written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: Collection[TopicPartition]
    transaction_version: int = TRANSACTION_VERSION_1
    """From version 2 on, a marker's epoch is later than the epoch of the data that it ends. The
    partition checks this."""
    votes: tuple[MarkerWork, ...] = ()
    """One for each vote that a parent's commit names."""

    @property
    def completion(self) -> Urgency:
        """How soon COMPLETE_* has to be durable after the markers.

        Under version 1 the next transaction has the same epoch, so its data cannot be told from the
        data of the transaction that ended: the next transaction's data waits for COMPLETE_*
        (docs/decisions/0007). Under version 2 the epoch differs, and no data waits.
        """
        if self.transaction_version == TRANSACTION_VERSION_1:
            return Urgency.AWAITED
        if self.votes and any(vote.completion is Urgency.AWAITED for vote in self.votes):
            return Urgency.AWAITED
        return Urgency.RELAXED


Find = Callable[[str], TransactionMetadata | None]

#: Whether this node leads a partition: then its marker can be appended in the step of a decision.
LedHere = Callable[[TopicPartition], bool]

#: Counts the partitions whose next append makes or opens files.
CountMakingFiles = Callable[[Collection[TopicPartition]], int]


def work_due(txn: TransactionMetadata, find: Find | None = None) -> MarkerWork | None:
    """Return the markers that the decision in `txn` owes; None: it owes none.

    `find` returns the transaction of a transactional id, for the votes that the decision names.
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
    """Return the markers that a decided vote owes: those of the child's own commit.

    The child cannot be gone: it is sealed, and its record stands before the decision in the same
    log.
    """
    child = None if find is None else find(vote.transactional_id)
    if child is None or child.state is not State.VOTED or child.identity != vote[1:]:
        raise AssertionError(f"{vote.transactional_id}: its decided vote is {child}")
    # The parent's decision decides the child too (`joint`): no record says that the child commits.
    # So ask what the child would owe if there were one.
    work = work_due(child._replace(state=State.PREPARE_COMMIT))
    assert work is not None, f"{vote.transactional_id}: a decided vote owes its markers"
    return work


class Planned(NamedTuple):
    """The records of a decision as they are appended, and the work that follows."""

    records: tuple[TransactionMetadata, ...]
    work: tuple[MarkerWork, ...] = ()
    """The markers owed. The work of the decided id comes last: all other work is done before it."""
    plan: Plan = Plan.DECISION_FIRST
    """The plan for all of `work`."""


def planned(
    records: tuple[TransactionMetadata, ...],
    storage: Storage,
    find: Find,
    *,
    is_ending: bool,
    is_led_here: LedHere | None = None,
    count_making_files: CountMakingFiles,
) -> Planned:
    """Plan the decision in `records[0]`; the other records are those of its children (`joint`).

    `is_ending`: an earlier end of the same id is not yet complete. `is_led_here`: None where this
    node leads every partition.
    """
    decided, *children = records
    work = [due for child in children if (due := work_due(child, find)) is not None]
    own = work_due(decided, find)
    if own is None and work:
        # The parent has no partitions itself, but its client waits for the children's aborts.
        own = MarkerWork(decided.transactional_id, *decided.identity, commit=False, partitions=())
    if own is None:
        return Planned(records)
    works = (*work, own)
    is_single = not (work or own.votes)
    partitions = own.partitions
    if not is_single:
        # One more than the limit is enough to see that they are too many.
        partitions = [*islice(_partitions(works), MARKERS_AT_ONCE_MAX + 1)]
    if (by_partitions := _kind_by(partitions, is_led_here, count_making_files)) is not None:
        kind = by_partitions
    elif is_ending or not is_single:
        kind = Decided.WITH_OTHERS
    elif own.transaction_version == TRANSACTION_VERSION_1:
        kind = Decided.VERSION_1
    else:
        kind = Decided.VERSION_2
    plan = PLANS[storage, kind]
    if plan is Plan.ONE_RECORD:
        records = (ended(decided, _COMPLETED[decided.state], decided.updated_at_ms),)
    return Planned(records, works, plan)


def _kind_by(
    partitions: Collection[TopicPartition],
    is_led_here: LedHere | None,
    count_making_files: CountMakingFiles,
) -> Decided | None:
    """Return the kind of a decision, as far as the partitions decide it that are owed a marker.

    LARGE: they are too many, or too many of them make files. OVER_NODES: another node leads one of
    them. None: neither is so.
    """
    if len(partitions) > MARKERS_AT_ONCE_MAX:
        return Decided.LARGE
    here = partitions if is_led_here is None else [*filter(is_led_here, partitions)]
    # The number comes first, so a short commit looks at no partition.
    if len(here) > MAKING_FILES_AT_ONCE_MAX and count_making_files(here) > MAKING_FILES_AT_ONCE_MAX:
        return Decided.LARGE
    return Decided.OVER_NODES if len(here) < len(partitions) else None


def _partitions(works: tuple[MarkerWork, ...]) -> Iterator[TopicPartition]:
    """Yield every partition that is owed a marker of `works` or of their votes."""
    for work in works:
        for one in (work, *work.votes):
            yield from one.partitions


_COMPLETED = {
    State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
    State.PREPARE_ABORT: State.COMPLETE_ABORT,
}


def complete(
    txn: TransactionMetadata | None, done: MarkerWork, now_ms: int
) -> Decision[TransactionMetadata, None]:
    """Decide that `txn` is complete, because `done` was all that it owed.

    No record where `done` was the work of another transaction than the id's current one. A producer
    whose epochs are used up continues with the producer id that was reserved for it.
    """
    worked_for = (done.producer_id, done.producer_epoch)
    # The id may have been forgotten, or have a later transaction, which must not be ended here.
    if txn is None or (txn.producer_id, txn.producer_epoch) != worked_for:
        return Decision(answer=None)
    completed = _COMPLETED.get(txn.state)
    if completed is None:
        return Decision(answer=None)
    return Decision(records=(ended(txn, completed, now_ms),), answer=None)


def ended(txn: TransactionMetadata, completed: State, now_ms: int) -> TransactionMetadata:
    """Return `txn` in the state `completed`, in which nothing of it is open any more."""
    changes: dict[str, int] = {}
    if txn.next_producer_id != NO_PRODUCER_ID:
        changes = {
            "producer_id": txn.next_producer_id,
            "producer_epoch": 0,
            "previous_producer_id": txn.producer_id,
            "next_producer_id": NO_PRODUCER_ID,
        }
    return transition(txn, completed, now_ms, partitions=frozenset(), votes=(), **changes)
