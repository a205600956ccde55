"""The driver's commit of one batch: which votes count, and whether they become visible. Pure.

The votes of a batch's tasks are decided together by their parent, the query (docs/spark.md,
"How it works, and recovers"). Spark may run this again for a batch that was decided, in another
process, or in a second driver that does not know that it was replaced:

- the parent is initialised *before* the record is read: whoever was before can decide nothing more;
- the record is written by the decision, so the same batch is never decided twice;
- recording seals the votes, so those that were compared are those that are decided.
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
        """Return the last batch recorded; what is being decided is waited for."""

    def initialise(self) -> None:
        """Fence earlier drivers. What they sealed and did not decide is aborted."""

    def undecided(self) -> Set[str]:
        """Return the children that have voted, or may yet."""

    def votes(self) -> Set[str]:
        """Return the children that have voted."""

    def fence(self, children: Iterable[str]) -> None:
        """Abort their votes; they change nothing any more."""

    def record(self, progress: Progress) -> None:
        """Record the batch, with the decision. Seals the votes."""

    def commit(self) -> None:
        """Make all votes visible."""

    def abort(self) -> None:
        """Abort all votes, if it can be done; otherwise the parent's timeout does it."""


def commit_batch(
    parent: Parent,
    batch: Progress,
    children: Set[str],
    is_written: Callable[[Progress | None], bool],
) -> bool:
    """Make the votes of `children`, and no others, visible; return whether it was done here: False
    where the batch was written before, and these were a repetition.

    `is_written` judges the record and raises what it refuses. VotesDiffer: a vote is missing, or
    one is there that Spark does not know of; the batch was aborted.
    """
    # Who may not write here shall not disturb who does.
    is_written(parent.recorded())
    parent.initialise()
    if is_written(parent.recorded()):
        parent.fence(children)
        return False
    # Losers of speculation, tasks that nobody waits for any more, and earlier attempts.
    parent.fence(parent.undecided() - children)
    try:
        parent.record(batch)
        votes = parent.votes()
    except SinkError:
        parent.abort()
        raise
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
            f"{_some(missing)} did not vote, or not in time (a vote is kept for "
            "joint.vote.timeout.ms of the broker, a batch may take no longer)"
        )
    if unknown:
        parts.append(f"{_some(unknown)} voted at the last moment")
    return f"the batch was aborted and can be repeated: {'; '.join(parts)}."


def _some(children: Set[str]) -> str:
    named = ", ".join(sorted(children)[:_NAMED_MAX])
    more = len(children) - _NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named
