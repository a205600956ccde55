"""Transactions: what is open, for how long, whom it holds back; and ending it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from magnetar.client import Client, ClientError, NotFound, Refused, TopicPartition
from magnetar.client import transactions as queries
from magnetar.client.partitions import OpenProducer
from magnetar.client.transaction_aborts import VoteSealed, abort_in_partition, abort_transaction
from magnetar.client.transactions import OPEN_STATES, State, Transaction
from magnetar.console.screens import Screen, Visit, uncertain

#: Rows of a page. More are counted, and a filter finds them.
ROWS_MAX = 200
#: The default of transaction.max.timeout.ms: a younger transaction may still be at work.
_HANGING_AFTER_MS = 15 * 60_000


@dataclass(frozen=True)
class Row:
    """An open transaction with what a person asks first."""

    transaction: Transaction
    open_for_ms: int
    held_back: int
    votes: Sequence[Transaction] = ()

    @property
    def is_overdue(self) -> bool:
        """Whether it is older than its own timeout, which should have ended it."""
        return self.open_for_ms > self.transaction.timeout_ms > 0

    @property
    def voted(self) -> int:
        return sum(child.has_voted for child in self.votes)

    @property
    def abortable(self) -> bool:
        return self.transaction.state in (State.ONGOING, State.VOTED)


@dataclass(frozen=True)
class Blocked:
    """A partition whose readers wait, the transaction that they wait for, and how many are behind
    it."""

    place: TopicPartition
    first: OpenProducer
    owner: Transaction | None
    open_for_ms: int
    behind: Sequence[OpenProducer]


def overview(visit: Visit) -> Screen:
    """The open transactions by age, and the partitions that they hold back."""
    wanted = visit.query.get("filter", "").strip()

    def ask(client: Client) -> tuple[list[Transaction], dict[str, list[Transaction]], str]:
        found = queries.list_transactions(client, states=sorted(OPEN_STATES))
        shown = [each for each in found if wanted in each.transactional_id]
        refusal = fill(client, shown)
        return shown, queries.describe_children(client, shown), refusal

    found, children, refusal = visit.look(ask)
    now_ms = queries.now_ms()
    rows = sorted(
        (row(each, now_ms, children.get(each.transactional_id, ())) for each in found),
        key=lambda each: -each.open_for_ms,
    )
    values = {
        "rows": rows[:ROWS_MAX],
        "total": len(rows),
        "blocked": blocked(found, now_ms)[:ROWS_MAX],
        "held_back": sum(each.held_back for each in rows),
        "filter": wanted,
        "refusal": refusal,
        "has_votes": any(each.transaction.parent_id or each.votes for each in rows),
        "has_clients": any(each.transaction.client_id for each in rows),
    }
    return Screen("transactions.html", values, "Transactions", is_live=True)


def fill(client: Client, found: Sequence[Transaction]) -> str:
    """Fill in where transactions are open; return why that is not told, if it is not."""
    try:
        queries.fill_open_partitions(client, found)
    # To see a topic's producers takes READ; the transactions themselves are shown without.
    except Refused as refusal:
        return str(refusal)
    return ""


def row(one: Transaction, now_ms: int, votes: Sequence[Transaction] = ()) -> Row:
    held_back = sum(each.records_held_back for each in one.open_in)
    return Row(one, one.open_for_ms(now_ms), held_back, votes)


def blocked(found: Iterable[Transaction], now_ms: int) -> list[Blocked]:
    """Return the partitions that open transactions hold back, the longest first. Pure."""
    by_place: dict[TopicPartition, list[tuple[OpenProducer, Transaction]]] = {}
    for one in found:
        for producer in one.open_in:
            by_place.setdefault(producer.place, []).append((producer, one))
    rows = []
    for place, producers in by_place.items():
        (first, owner), *behind = sorted(producers, key=lambda each: each[0].start_offset)
        rows.append(
            Blocked(place, first, owner, owner.open_for_ms(now_ms), [each for each, _ in behind])
        )
    return sorted(rows, key=lambda each: (-each.open_for_ms, each.place))


def ids(visit: Visit) -> Screen:
    """Every transactional id, also of transactions that have ended."""
    wanted = visit.query.get("filter", "").strip()

    def ask(client: Client) -> list[Transaction]:
        return queries.list_transactions(client)

    found = [each for each in visit.look(ask) if wanted in each.transactional_id]
    values = {
        "rows": found[:ROWS_MAX],
        "total": len(found),
        "filter": wanted,
        "now_ms": queries.now_ms(),
    }
    return Screen("transaction_ids.html", values, "Transactional ids")


def hanging(visit: Visit) -> Screen:
    """Transactions that no coordinator knows. Looks into every partition, so it is asked for.

    Every node is asked: without one, all that it coordinates would seem to hang.
    """

    def ask(client: Client) -> list[OpenProducer]:
        return queries.find_hanging(client, None, _HANGING_AFTER_MS)

    found = visit.access.ask(ask)
    values = {"rows": found[:ROWS_MAX], "total": len(found), "now_ms": queries.now_ms()}
    return Screen("transactions_hanging.html", values, "Hanging transactions")


def one(visit: Visit) -> Screen:
    """One transactional id: its state, partitions, and its family."""
    transactional_id = visit.query.get("id", "")

    def ask(client: Client) -> tuple[Transaction, list[Transaction]]:
        found = _described(client, transactional_id)
        fill(client, [found])
        return found, queries.describe_children(client, [found]).get(transactional_id, [])

    found, children = visit.look(ask)
    now_ms = queries.now_ms()
    values = {
        "row": row(found, now_ms, children),
        "children": [row(each, now_ms) for each in children],
        "open_in": {each.place: each for each in found.open_in},
    }
    return Screen("transaction.html", values, found.transactional_id, is_live=True)


def abort_form(visit: Visit) -> Screen:
    """What an abort would do, and the button."""
    transactional_id = visit.query.get("id", "")

    def ask(client: Client) -> Transaction:
        found = _described(client, transactional_id)
        fill(client, [found])
        return found

    found = visit.access.ask(ask)
    if row(found, 0).abortable:
        values = {"row": row(found, queries.now_ms())}
        return Screen("transaction_abort.html", values, f"Abort {transactional_id}?")
    return _ended_by_others(found)


def abort(visit: Visit) -> Screen:
    """Abort the transaction that the form was made for, and no later one of the same id."""
    transactional_id = visit.form.get("id", "")
    seen = visit.form.get("seen", "")

    def deed(client: Client) -> Transaction | None:
        found = _described(client, transactional_id)
        if identity(found) != seen or not row(found, 0).abortable:
            return None
        with uncertain():
            return abort_transaction(client, transactional_id)

    try:
        aborted = visit.access.act(deed)
    except VoteSealed as sealed:
        raise ClientError(f"{sealed} Abort {sealed.parent_id!r}, which aborts them both.") from None
    if aborted is None:
        return _ended_by_others(
            visit.access.ask(lambda client: _described(client, transactional_id))
        )
    values = {"row": row(aborted, queries.now_ms()), "transactional_id": transactional_id}
    return Screen("transaction_aborted.html", values, f"Aborted {transactional_id}")


def abort_hanging(visit: Visit) -> Screen:
    """Write the marker that ends a hanging transaction in its partition."""
    try:
        place = visit.form.get("topic", ""), int(visit.form.get("partition", ""))
        start_offset = int(visit.form.get("start_offset", ""))
    except ValueError:
        raise NotFound("The form names no partition and offset.") from None

    def deed(client: Client) -> OpenProducer:
        with uncertain():
            return abort_in_partition(client, place, start_offset, force=False)

    found = visit.access.act(deed)
    return Screen("hanging_aborted.html", {"found": found}, "Aborted")


def identity(one: Transaction) -> str:
    """Return what tells a transaction from the earlier and later ones of its id."""
    return f"{one.producer_id}/{one.producer_epoch}/{one.started_ms}"


def _described(client: Client, transactional_id: str) -> Transaction:
    if not transactional_id:
        raise NotFound("No transactional id is named.")
    (found,) = queries.describe(client, [transactional_id])
    return found


def _ended_by_others(found: Transaction) -> Screen:
    values = {"row": row(found, queries.now_ms()), "seen_state": found.state}
    return Screen("transaction_ended.html", values, "Not aborted", status=409)
