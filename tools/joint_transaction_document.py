"""The tables and diagrams of docs/joint_transactions.md, drawn from the rules themselves:
`python -m tools.joint_transaction_document`. As `tools.transaction_document`, for families.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from coordinator.decision import Decision
from coordinator.transactions import joint
from coordinator.transactions.add_partitions import add_partitions
from coordinator.transactions.commit_plan import MarkerWork, complete
from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.expire import Lifetimes, expire
from coordinator.transactions.init_producer_id import init_producer_id
from coordinator.transactions.metadata import (
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
)
from coordinator.transactions.shard import Shard
from tools.drawn_sections import table, with_sections
from tools.transaction_document import ROOT, in_state, story
from wire.error_code import ErrorCode
from wire.errors import KafkaError

PAGE = ROOT / "docs" / "joint_transactions.md"
TOOL = "tools.joint_transaction_document"

PARENT, CHILD = "p", "p~>c"
_LIFETIMES = Lifetimes(1_000_000, 1_000_000, 1_000_000)
_LATE_MS = 10_000_000
_SHOWN = (State.EMPTY, State.ONGOING, State.VOTED, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
_SEALED = "sealed"

Txn = TransactionMetadata
Decide = Callable[[Txn | None], Decision[Txn, object]]


class Family:
    """A parent and one child, each in a state, and what becomes of them."""

    def __init__(self, child: State | None, parent: State) -> None:
        self.shard = Shard(0)
        self.shard.apply(_member(PARENT, parent, 2000))
        if child is not None:
            self.shard.apply(_member(CHILD, child, 1000)._replace(parent_id=PARENT))

    def submit(self, name: str, decide: Decide) -> None:
        """Decide and apply."""
        before = self.shard.get(name)
        decision = joint.joined(
            before, decide(before), self.shard, now_ms=2000, take_producer_id=lambda: 9000
        )
        for record in decision.records:
            self.shard.apply(record)

    def init(self, name: str) -> None:
        self.submit(
            name,
            lambda txn: init_producer_id(
                txn,
                name,
                parent_id=joint.parent_of(name, "~>"),
                claimed=None,
                timeout_ms=60_000,
                fresh_producer_id=3000,
                now_ms=2000,
            ),
        )

    def add(self, name: str) -> None:
        who = self.identity(name)
        self.submit(
            name,
            lambda txn: add_partitions(
                txn,
                who,
                frozenset({TopicPartition("orders", 1)}),
                coordinator_partition=0,
                now_ms=2000,
                transaction_version=2,
            ),
        )

    def end(self, name: str, *, commit: bool, is_retry: bool = False) -> None:
        producer_id, epoch = self.identity(name)
        who = ProducerIdentity(producer_id, epoch - is_retry)
        self.submit(
            name,
            lambda txn: end_txn(
                txn,
                who,
                commit=commit,
                transaction_version=2,
                coordinator_partition=0,
                fresh_producer_id=3000,
                now_ms=2000,
            ),
        )
        ended = self.shard.get(name)
        assert ended is not None
        if commit and self.shard.get(CHILD) is ended:
            refusal = joint.refusal_of_late_vote(ended)
            if refusal is not None:
                raise refusal

    def decide(self, *, commit: bool) -> None:
        """The parent ends its transaction, and all markers become durable."""
        self.end(PARENT, commit=commit)
        for work in self.shard.work_due():
            self.submit(work.transactional_id, _completing(work))

    def time_passes(self, name: str) -> None:
        parent = self.shard.get(PARENT) if name == CHILD else None
        self.submit(
            name,
            lambda txn: expire(txn, _LIFETIMES, _LATE_MS, parent=parent, fresh_producer_id=3000),
        )

    def identity(self, name: str) -> ProducerIdentity:
        txn = self.shard.get(name)
        return ProducerIdentity(1000, 0) if txn is None else txn.identity


def _completing(work: MarkerWork) -> Decide:
    return lambda txn: complete(txn, work, 2000)


def _member(name: str, state: State, producer_id: int) -> Txn:
    txn = in_state(state)
    return txn._replace(transactional_id=name, producer_id=producer_id)


#: What happens to the child, and what is asked of the family then.
_CHILDS: dict[str, Callable[[Family], None]] = {
    "InitProducerId of the child": lambda family: family.init(CHILD),
    "its data, its AddPartitionsToTxn": lambda family: family.add(CHILD),
    "EndTxn, commit": lambda family: family.end(CHILD, commit=True),
    "the same again": lambda family: family.end(CHILD, commit=True, is_retry=True),
    "EndTxn, abort": lambda family: family.end(CHILD, commit=False),
    "its time passes": lambda family: family.time_passes(CHILD),
}
#: What happens to its parent; the last three are of a parent that has begun.
_PARENTS: dict[str, tuple[State, Callable[[Family], None]]] = {
    "the parent begins: the seal": (State.EMPTY, lambda family: family.add(PARENT)),
    "InitProducerId of the parent, idle": (State.EMPTY, lambda family: family.init(PARENT)),
    "the parent commits": (State.ONGOING, lambda family: family.decide(commit=True)),
    "the parent aborts": (State.ONGOING, lambda family: family.decide(commit=False)),
    "InitProducerId of the parent, sealed": (State.ONGOING, lambda family: family.init(PARENT)),
    "the parent's time passes": (State.ONGOING, lambda family: family.time_passes(PARENT)),
}


def outcome(child: State, parent: State, happen: Callable[[Family], None]) -> str:
    """Return what becomes of the child, as a cell."""
    family = Family(child, parent)
    before = family.shard.get(CHILD)
    refusal = None
    try:
        happen(family)
    except KafkaError as error:
        refusal = error.code
    after = family.shard.get(CHILD)
    moved = "" if after is before else _moved(before, after)
    if refusal is not None:
        return refusal.name + (f", {moved}" if moved else "")
    return moved or "-"


def _moved(before: Txn | None, after: Txn | None) -> str:
    if after is None:
        return "forgotten"
    assert before is not None
    bump = after.producer_epoch - before.producer_epoch
    return f"**{after.state.label}**" + (f", epoch + {bump}" if bump else "")


def childs_table() -> str:
    """What the child's requests do, by its state, while the parent is idle and while it is not."""
    columns = {state.label: (state, State.EMPTY) for state in _SHOWN}
    columns |= {
        f"{state.label}, {_SEALED}": (state, State.ONGOING)
        for state in (State.EMPTY, State.ONGOING, State.VOTED)
    }
    rows = [
        (event, *(_answer(event, outcome(*states, happen)) for states in columns.values()))
        for event, happen in _CHILDS.items()
    ]
    return table(("", *columns), rows)


def _answer(event: str, cell: str) -> str:
    """Say of a request that changes nothing that it succeeds; of time, nothing."""
    return "success" if cell == "-" and event != "its time passes" else cell


def parents_table() -> str:
    """What becomes of a child when its parent does something."""
    states = (State.EMPTY, State.ONGOING, State.VOTED)
    rows = [
        (event, *(outcome(state, parent, happen) for state in states))
        for event, (parent, happen) in _PARENTS.items()
    ]
    return table(("", *(state.label for state in states)), rows)


def edges() -> dict[tuple[State, State], list[str]]:
    """Return the steps of a child that some event makes, and what leads to each."""
    found: dict[tuple[State, State], list[str]] = {}
    happenings: Iterable[tuple[str, State, Callable[[Family], None]]] = (
        *((event, State.EMPTY, happen) for event, happen in _CHILDS.items()),
        *((f"{event} ({_SEALED})", State.ONGOING, happen) for event, happen in _CHILDS.items()),
        *((event, parent, happen) for event, (parent, happen) in _PARENTS.items()),
    )
    for event, parent, happen in happenings:
        for state in (State.ONGOING, State.VOTED):
            family = Family(state, parent)
            try:
                happen(family)
            except KafkaError as refusal:
                if refusal.code is not ErrorCode.PRODUCER_FENCED:
                    continue
            after = family.shard.get(CHILD)
            assert after is not None
            if after.state is not state:
                causes = found.setdefault((state, after.state), [])
                if event.removesuffix(f" ({_SEALED})") not in causes:
                    causes.append(event)
    return found


def state_diagram() -> str:
    """A child's way from its begin to its end; what is due is done."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> Ongoing: its data"]
    ends = {State.PREPARE_ABORT: "Aborted", State.COMPLETE_ABORT: "Aborted"}
    drawn: dict[tuple[str, str], list[str]] = {}
    for (before, after), events in edges().items():
        end = ends.get(after, "Committed" if after is State.COMPLETE_COMMIT else after.label)
        drawn.setdefault((before.label, end), []).extend(events)
    for (start, end), events in drawn.items():
        lines.append(f"    {start} --> {end}: {', '.join(dict.fromkeys(events))}")
    return "\n".join([*lines, "```"])


SECTIONS: dict[str, Callable[[], str]] = {
    "state diagram": state_diagram,
    "requests of a child": childs_table,
    "what a parent does to a child": parents_table,
    "trace of a commit": lambda: story("joint_commit"),
    "trace of a reload": lambda: story("joint_reload"),
}


def document(page: str) -> str:
    """Return `page` with every section written anew. ValueError: one of them is not in it."""
    return with_sections(page, SECTIONS, TOOL)


def main() -> int:
    PAGE.write_text(document(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
