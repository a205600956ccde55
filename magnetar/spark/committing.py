"""The driver's commit of one batch: which votes count, and whether they become visible. Pure.

The parent of a batch's tasks, the query, decides their votes together (docs/spark.md, "How it
works, and recovers"). Spark may run this again for a decided batch, in another process, or in a
second driver that does not know that it was replaced. Three steps make that safe:

- The parent is initialised *before* the record is read, so earlier drivers can decide nothing more.
- The decision writes the record, so the same batch is never decided twice.
- Recording seals the votes, so the votes that were compared are those that are decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Protocol

from magnetar.spark.errors import SinkError, VotesDiffer
from magnetar.spark.progress import Progress

_NAMED_MAX = 3


class Parent(Protocol):
    """The parent transaction of a query, on its coordinator. Every call may raise SinkError."""

    def recorded(self) -> Progress | None:
        """Return the last recorded batch; waits for a decision that is being carried out."""

    def initialise(self) -> None:
        """Fence earlier drivers. Votes that they sealed and did not decide are aborted."""

    def undecided(self) -> Set[str]:
        """Return the children that have voted, or may still vote."""

    def votes(self) -> Set[str]:
        """Return the children that have voted."""

    def fence(self, children: Iterable[str]) -> None:
        """Abort the votes of these children, which can write nothing more."""

    def record(self, progress: Progress) -> None:
        """Record the batch, to be written by the decision. Seals the votes."""

    def commit(self) -> None:
        """Make all votes visible."""

    def abort(self) -> None:
        """Abort all votes if a broker is reachable; otherwise the parent's timeout aborts them."""


def commit_batch(
    parent: Parent,
    batch: Progress,
    children: Set[str],
    is_written: Callable[[Progress | None], bool],
) -> bool:
    """Make the votes of `children`, and no others, visible.

    Returns False if the batch was written before: then the children repeated it, and are fenced.
    `is_written` judges the record, and raises if this query may not write. VotesDiffer: a vote is
    missing, or Spark does not know one; the batch was aborted.
    """
    # Asked before anything is fenced: a query that may not write must not disturb the one that may.
    is_written(parent.recorded())
    parent.initialise()
    if is_written(parent.recorded()):
        parent.fence(children)
        return False
    # These are losers of speculation, tasks of replaced drivers, and earlier attempts.
    parent.fence(parent.undecided() - children)
    try:
        # Before the votes are listed: recording seals them, so no vote can join the list later.
        parent.record(batch)
        votes = parent.votes()
    # The outcome is not decided yet, so all can be aborted: Spark repeats the batch.
    except SinkError:
        parent.abort()
        raise
    # Both ways: a missing vote loses rows, an unknown one writes rows twice.
    if votes != children:
        parent.abort()
        raise VotesDiffer(_difference(votes, children))
    parent.commit()
    return True


def _difference(votes: Set[str], children: Set[str]) -> str:
    missing, unknown = children - votes, votes - children
    parts = []
    if missing:
        parts.append(
            f"{_some(missing)} did not vote, or too early (a vote is kept for "
            "joint.vote.timeout.ms of the broker after the last task began or voted)"
        )
    if unknown:
        parts.append(f"{_some(unknown)} voted at the last moment")
    return f"the batch was aborted and can be repeated: {'; '.join(parts)}."


def _some(children: Set[str]) -> str:
    named = ", ".join(sorted(children)[:_NAMED_MAX])
    more = len(children) - _NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named
