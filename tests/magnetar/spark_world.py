"""A coordinator in memory that keeps the rules of joint transactions, and drivers that use it.

Each call of a driver is one step, which takes effect whole or not at all. At a step a driver may
die, before or after the effect, and whatever else the test wants may happen first: another
driver's whole commit, a late vote, a timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TypeVar

from magnetar.spark.committing import commit_batch
from magnetar.spark.errors import SinkError
from magnetar.spark.progress import Progress, is_written

QUERY = "orders"
T = TypeVar("T")


class Died(Exception):
    """The driver's process is gone."""


class Fate(Enum):
    """What happens at a step."""

    GOES_ON = auto()
    DIES_BEFORE = auto()
    DIES_AFTER = auto()
    FAILS_BEFORE = auto()
    """The broker is away for too long, and did nothing."""
    FAILS_AFTER = auto()
    """The broker is away for too long; it did it."""


class ChildState(Enum):
    ONGOING = auto()
    VOTED = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass
class Coordinator:
    """One parent and its children: what docs/joint_transactions.md promises."""

    epoch: int = 0
    is_sealed: bool = False
    children: dict[str, ChildState] = field(default_factory=dict)
    recorded: Progress | None = None
    staged: Progress | None = None
    visible: list[str] = field(default_factory=list)
    """Children in the order in which they became visible."""

    def begin(self, child: str) -> bool:
        """Whether the child may write."""
        if self.is_sealed:
            return False
        self.children[child] = ChildState.ONGOING
        return True

    def vote(self, child: str) -> bool:
        """Whether the child was answered that it committed."""
        state = self.children[child]
        if state is ChildState.ONGOING:
            voted = ChildState.ABORTED if self.is_sealed else ChildState.VOTED
            self.children[child] = voted
            return not self.is_sealed
        return state in (ChildState.VOTED, ChildState.COMMITTED)

    def initialise(self) -> int:
        if self.is_sealed:
            self.decide(commit=False)
        self.epoch += 1
        return self.epoch

    def decide(self, *, commit: bool) -> None:
        for child, state in self.children.items():
            if state is ChildState.VOTED and commit:
                self.children[child] = ChildState.COMMITTED
                self.visible.append(child)
            elif state in (ChildState.VOTED, ChildState.ONGOING):
                self.children[child] = ChildState.ABORTED
        if commit:
            self.recorded = self.staged
        self.staged, self.is_sealed = None, False

    def expire_votes(self) -> None:
        if self.is_sealed:
            return
        for child, state in self.children.items():
            if state is ChildState.VOTED:
                self.children[child] = ChildState.ABORTED


@dataclass
class FakeParent:
    """`committing.Parent` of one driver process. `at_step` is asked before each call."""

    coordinator: Coordinator
    at_step: Callable[[str], Fate] = lambda _: Fate.GOES_ON
    steps: list[str] = field(default_factory=list)
    _epoch: int = -1

    def recorded(self) -> Progress | None:
        return self._take("recorded", lambda: self.coordinator.recorded)

    def initialise(self) -> None:
        self._epoch = self._take("initialise", self.coordinator.initialise)

    def undecided(self) -> Set[str]:
        return self._take("undecided", lambda: self._in_state(ChildState.VOTED, ChildState.ONGOING))

    def votes(self) -> Set[str]:
        return self._take("votes", lambda: self._in_state(ChildState.VOTED))

    def fence(self, children: Iterable[str]) -> None:
        for child in sorted(children):
            self._take("fence", partial(self._fence, child))

    def record(self, progress: Progress) -> None:
        self._take("record", lambda: self._seal(progress))

    def commit(self) -> None:
        self._take("commit", lambda: self._end(commit=True))

    def abort(self) -> None:
        try:
            self._take("abort", lambda: self._end(commit=False))
        except SinkError:
            return

    def _in_state(self, *states: ChildState) -> set[str]:
        return {child for child, state in self.coordinator.children.items() if state in states}

    def _fence(self, child: str) -> None:
        state = self.coordinator.children.get(child)
        if state is ChildState.VOTED and self.coordinator.is_sealed:
            raise SinkError(f"{child}: CONCURRENT_TRANSACTIONS")
        if state in (ChildState.VOTED, ChildState.ONGOING):
            self.coordinator.children[child] = ChildState.ABORTED

    def _seal(self, progress: Progress) -> None:
        self._require_current()
        self.coordinator.is_sealed = True
        self.coordinator.staged = progress

    def _end(self, *, commit: bool) -> None:
        self._require_current()
        if not self.coordinator.is_sealed:
            raise SinkError("INVALID_TXN_STATE")
        self.coordinator.decide(commit=commit)

    def _require_current(self) -> None:
        if self._epoch != self.coordinator.epoch:
            raise SinkError("PRODUCER_FENCED")

    def _take(self, step: str, effect: Callable[[], T]) -> T:
        self.steps.append(step)
        fate = self.at_step(step)
        if fate is Fate.DIES_BEFORE:
            raise Died
        if fate is Fate.FAILS_BEFORE:
            raise SinkError("the broker is away")
        result = effect()
        if fate is Fate.DIES_AFTER:
            raise Died
        if fate is Fate.FAILS_AFTER:
            raise SinkError("the answer was lost")
        return result


def progress(batch_id: int, spark_query: str | None = "spark-1", run: str = "run") -> Progress:
    return Progress(batch_id, spark_query, run, None, rows=10)


def commit(parent: FakeParent, batch: Progress, children: Set[str], *, stream: bool = True) -> bool:
    """Commit as the data source does."""

    def judge(recorded: Progress | None) -> bool:
        return is_written(recorded, batch, QUERY, stream=stream)

    return commit_batch(parent, batch, children, judge)
