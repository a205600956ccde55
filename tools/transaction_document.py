"""The tables and diagrams of docs/transactions.md, drawn from the rules themselves:
`python -m tools.transaction_document`.

Every cell is what a rule of `coordinator.transactions` decides when it is asked, every edge of the
state diagram one that some rule takes, and the traces are those of tests/scenarios. Each stands
between a line that names it and `<!-- end -->`; what is around them is written by hand. A test
compares, so the page cannot drift from the code.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from coordinator.decision import Decision
from coordinator.transactions.add_partitions import add_partitions, check_holds
from coordinator.transactions.commit_plan import (
    MAKING_FILES_AT_ONCE_MAX,
    MARKERS_AT_ONCE_MAX,
    PLANS,
    Decided,
    Storage,
    complete,
    work_due,
)
from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.expire import Lifetimes, expire
from coordinator.transactions.healing import heal
from coordinator.transactions.init_producer_id import init_producer_id
from coordinator.transactions.metadata import (
    PREDECESSORS,
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    UNFINISHED,
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
    TxnId,
)
from tools.drawn_sections import table, with_sections
from wire.errors import KafkaError

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "transactions.md"
_STORIES = ROOT / "tests" / "scenarios"

_HELD, _NOT_HELD = TopicPartition("orders", 0), TopicPartition("orders", 1)
_EPOCH = 5
_CURRENT = ProducerIdentity(1000, _EPOCH)
_LAST = ProducerIdentity(1000, _EPOCH - 1)
_OLDER = ProducerIdentity(1000, _EPOCH - 2)
_FRESH_PRODUCER_ID = 2000
_ID_EXPIRATION_MS = 1_000_000
_LIFETIMES = Lifetimes(_ID_EXPIRATION_MS, _ID_EXPIRATION_MS, _ID_EXPIRATION_MS)
_LATE_MS = 10 * _ID_EXPIRATION_MS

_MEANINGS = {
    State.EMPTY: "the producer has its id and epoch, no transaction",
    State.ONGOING: "holds partitions; each was logged before its data, or with it",
    State.PREPARE_COMMIT: "decided; markers are due",
    State.PREPARE_ABORT: "decided, by the client, the timeout or a newer producer; markers are due",
    State.COMPLETE_COMMIT: "every marker is durable; the outcome is remembered for retries",
    State.COMPLETE_ABORT: "likewise; or the abort of nothing, version 2",
    State.DEAD: "unused for `transactional.id.expiration.ms`: a tombstone",
    State.PREPARE_EPOCH_FENCE: "Kafka's, in memory only; never entered here: fence and abort are"
    " one record",
    State.VOTED: "ours: a child's commit, which its parent's decision carries out or aborts"
    " ([joint_transactions.md](joint_transactions.md)); written as Ongoing, with a tagged field",
}
_STORAGES = {
    Storage.ALL_OR_NOTHING: "all of them or none: the journal, which is the default; PostgreSQL",
    Storage.IN_ORDER: "those before some point: `durability=page-cache` or `memory`",
    Storage.APART: "any of them: no journal, as there is no `syncfs`",
}
_DECIDED = {
    Decided.VERSION_1: "version 1",
    Decided.VERSION_2: "version 2",
    Decided.WITH_OTHERS: "of a family, or behind an end that is not durable yet",
    Decided.LARGE: (
        f"of more than {MARKERS_AT_ONCE_MAX} markers,"
        f" or more than {MAKING_FILES_AT_ONCE_MAX} that make files"
    ),
    Decided.OVER_NODES: "of partitions that another node leads too",
}
_SHOWN = (
    State.EMPTY,
    State.ONGOING,
    State.PREPARE_COMMIT,
    State.PREPARE_ABORT,
    State.COMPLETE_COMMIT,
    State.COMPLETE_ABORT,
)

Txn = TransactionMetadata
#: What is asked of a rule in one state.
Ask = Callable[[Txn | None], Decision[Txn, object]]


def in_state(state: State, partitions: Iterable[TopicPartition] = (_HELD,)) -> Txn:
    """Return a transactional id in `state`, its current epoch bumped from the last by its owner."""
    is_open = state is State.ONGOING or state in UNFINISHED
    begun_by = _CURRENT if state in (State.EMPTY, State.ONGOING) else _LAST
    return Txn(
        transactional_id="tx",
        producer_id=_CURRENT.producer_id,
        producer_epoch=_EPOCH,
        timeout_ms=60_000,
        state=state,
        updated_at_ms=1000,
        started_at_ms=1000,
        partitions=frozenset(partitions) if is_open else frozenset(),
        txn_id=TxnId(0, begun_by.producer_epoch, 0, begun_by.producer_id),
        last_producer_epoch=_EPOCH - 1,
        client_transaction_version=TRANSACTION_VERSION_2,
    )


def _init(claimed: ProducerIdentity | None) -> Ask:
    return lambda txn: init_producer_id(
        txn,
        "tx",
        claimed=claimed,
        timeout_ms=60_000,
        fresh_producer_id=_FRESH_PRODUCER_ID,
        now_ms=2000,
    )


def _add(partition: TopicPartition = _NOT_HELD) -> Ask:
    return lambda txn: add_partitions(
        txn,
        _CURRENT,
        frozenset({partition}),
        coordinator_partition=0,
        now_ms=2000,
        transaction_version=TRANSACTION_VERSION_2,
    )


def _data(partition: TopicPartition) -> Ask:
    def ask(txn: Txn | None) -> Decision[Txn, object]:
        check_holds(txn, *_CURRENT, partition, is_abortable_known=True)
        return Decision(answer=None)

    return ask


def _end(who: ProducerIdentity, version: int, *, commit: bool) -> Ask:
    return lambda txn: end_txn(
        txn,
        who,
        commit=commit,
        transaction_version=version,
        coordinator_partition=0,
        fresh_producer_id=_FRESH_PRODUCER_ID,
        now_ms=2000,
    )


def _time_passes(txn: Txn | None) -> Decision[Txn, object]:
    return expire(txn, _LIFETIMES, _LATE_MS, fresh_producer_id=_FRESH_PRODUCER_ID)


def _markers_are_durable(txn: Txn | None) -> Decision[Txn, object]:
    work = None if txn is None else work_due(txn)
    return Decision(answer=None) if work is None else complete(txn, work, 2000)


#: What may happen to a transactional id, and what is asked then.
_EVENTS: dict[str, Ask] = {
    "InitProducerId, naming no identity": _init(None),
    "InitProducerId, naming the current one": _init(_CURRENT),
    "InitProducerId, naming the one before": _init(_LAST),
    "InitProducerId, naming an older one": _init(_OLDER),
    "AddPartitionsToTxn, AddOffsetsToTxn; Produce v12+, TxnOffsetCommit v5+": _add(),
    "Produce v11, TxnOffsetCommit v4, partition held": _data(_HELD),
    "Produce v11, TxnOffsetCommit v4, not held": _data(_NOT_HELD),
    "EndTxn v0-v4, commit": _end(_CURRENT, TRANSACTION_VERSION_1, commit=True),
    "EndTxn v0-v4, abort": _end(_CURRENT, TRANSACTION_VERSION_1, commit=False),
    "EndTxn v5, commit": _end(_CURRENT, TRANSACTION_VERSION_2, commit=True),
    "EndTxn v5, abort": _end(_CURRENT, TRANSACTION_VERSION_2, commit=False),
    "EndTxn v5, commit, of the epoch before": _end(_LAST, TRANSACTION_VERSION_2, commit=True),
    "EndTxn v5, abort, of the epoch before": _end(_LAST, TRANSACTION_VERSION_2, commit=False),
    "all markers are durable": _markers_are_durable,
    "its time passes": _time_passes,
}


def decided(ask: Ask, txn: Txn | None) -> Txn | None:
    """Return the new value that is decided, None where there is nothing to write.

    Raises KafkaError where it is refused.
    """
    records = ask(txn).records
    return records[-1] if records else None


def outcome(ask: Ask, txn: Txn | None) -> str:
    """Return what happens, as a cell: the new state, or success, or the error."""
    try:
        after = decided(ask, txn)
    except KafkaError as refusal:
        return refusal.code.name
    if after is None:
        return "success" if ask not in (_time_passes, _markers_are_durable) else "-"
    if txn is None or after.producer_epoch == txn.producer_epoch:
        return f"**{after.state.label}**"
    return f"**{after.state.label}**, epoch + {after.producer_epoch - txn.producer_epoch}"


def events_table() -> str:
    """What each request does in each state."""
    states: dict[str, Txn | None] = {"unknown id": None}
    states |= {state.label: in_state(state) for state in _SHOWN}
    rows = [
        (event, *(outcome(ask, txn) for txn in states.values())) for event, ask in _EVENTS.items()
    ]
    return table(("", *states), rows)


def states_table() -> str:
    rows = [
        (
            state.label,
            str(int(state)),
            ", ".join(before.label for before in sorted(PREDECESSORS[state]))
            + (", or nothing" if state is State.EMPTY else ""),
            meaning,
        )
        for state, meaning in _MEANINGS.items()
    ]
    return table(("state", "id", "entered from", "meaning"), rows)


def edges() -> dict[tuple[State | None, State], list[str]]:
    """Return the transitions that some rule decides, and what leads to each."""
    found: defaultdict[tuple[State | None, State], list[str]] = defaultdict(list)
    for event, ask in _EVENTS.items():
        cause = event.split(",")[0]
        for before in (None, *(in_state(state) for state in _SHOWN)):
            try:
                after = decided(ask, before)
            except KafkaError:
                continue
            if after is not None:
                edge = (None if before is None else before.state, after.state)
                if cause not in found[edge]:
                    found[edge].append(cause)
    return found


def state_diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    for (before, after), causes in edges().items():
        start = "[*]" if before is None else before.label
        end = "[*]" if after is State.DEAD else after.label
        lines.append(f"    {start} --> {end}: {', '.join(causes)}")
    return "\n".join([*lines, "```"])


def plans_table() -> str:
    """What is appended in which step, for each kind of storage and of decision."""
    rows = []
    for storage, meaning in _STORAGES.items():
        plans = [PLANS[storage, decided].value for decided in _DECIDED]
        cells = ["; then ".join(" + ".join(p.value for p in step) for step in one) for one in plans]
        rows.append((meaning, *cells))
    return table(("a crash leaves of one step's appends", *_DECIDED.values()), rows)


def healing_table() -> str:
    """What becomes of data that a partition holds open, by the epoch of the data."""
    columns = {
        "current, held": (_CURRENT, _HELD),
        "current, not held": (_CURRENT, _NOT_HELD),
        "of the transaction that ended last": (_LAST, _HELD),
        "older": (_OLDER, _HELD),
    }
    rows = []
    for state in (*_SHOWN, State.VOTED):
        txn = in_state(state)
        verdicts = [heal(txn, data, partition) for data, partition in columns.values()]
        rows.append((state.label, *(f"{each.remedy.value}: {each.reason}" for each in verdicts)))
    unknown = heal(None, _CURRENT, _HELD)
    cell = f"{unknown.remedy.value}: {unknown.reason}"
    rows.append(("unknown id", *(cell for _ in columns)))
    return table(("", *columns), rows)


def story(name: str) -> str:
    """A golden trace: commands, and below each what it leaves in the two logs."""
    return f"```\n{(_STORIES / f'{name}.story').read_text().strip()}\n```"


SECTIONS: dict[str, Callable[[], str]] = {
    "states": states_table,
    "state diagram": state_diagram,
    "events": events_table,
    "plans": plans_table,
    "healing": healing_table,
    "trace of a commit, version 1": lambda: story("commit_version_1"),
    "trace of a commit": lambda: story("commit_version_2"),
    "trace of a reload": lambda: story("reload_in_prepare_commit"),
    "trace of a reload, decided first": lambda: story("decision_first/reload_in_prepare_commit"),
}


def document(page: str) -> str:
    """Return `page` with every section written anew. ValueError: one of them is not in it."""
    return with_sections(page, SECTIONS, "tools.transaction_document")


def main() -> int:
    PAGE.write_text(document(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
