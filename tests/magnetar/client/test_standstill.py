"""Why a group does not advance, from what two looks have found."""

from __future__ import annotations

from typing import Any

from magnetar.client.groups import Group, Member, Position
from magnetar.client.partitions import OpenProducer
from magnetar.client.standstill import Cause, Finding, Look, explained, findings
from magnetar.client.transactions import Transaction

ADA = Member("ada-1", None, "c", "/h", [("orders", 0)])
OPEN = OpenProducer("orders", 0, 7, 0, -1, start_offset=4, last_timestamp=60_000)
ETL = Transaction("etl", 1, 7, 0, "Ongoing", None, 60_000, 30_000, [("orders", 0)])


def seen(
    committed: int, reader: Member | None = ADA, state: str = "Stable", **changes: Any
) -> Look:
    members = [] if state == "Empty" else [ADA]
    values: dict[str, Any] = {
        "group": Group("g", "classic", "consumer", "range", state, 1, members=members),
        "positions": [Position("orders", 0, committed, 10, reader)],
        "earlier": {("orders", 0): committed},
        "stable": {("orders", 0): 10},
        "open": [],
        "transactions": [],
    }
    return Look(**{**values, **changes})


def causes(look: Look) -> list[Cause]:
    return [each.cause for each in findings(look)]


def test_a_group_that_has_read_everything_lacks_nothing() -> None:
    assert causes(seen(10)) == causes(seen(10, None, "Empty")) == []


def test_members_that_are_missing_rebalance_or_do_not_read() -> None:
    assert causes(seen(4, None, "Empty")) == [Cause.NO_MEMBERS]
    assert causes(seen(4, None, "PreparingRebalance")) == [Cause.REBALANCING, Cause.NOT_ASSIGNED]
    assert causes(seen(4, None)) == [Cause.NOT_ASSIGNED]


def test_a_member_commits_or_does_not() -> None:
    assert causes(seen(4)) == causes(seen(-1)) == [Cause.NOT_COMMITTING]
    (advancing,) = findings(seen(4, earlier={("orders", 0): 1}))
    assert (advancing.cause, advancing.advanced) == (Cause.ADVANCING, 3)


def test_an_open_transaction_is_named_with_its_owner_and_age() -> None:
    held: dict[str, Any] = {"stable": {("orders", 0): 4}, "open": [OPEN]}
    (found,) = findings(seen(4, **held, transactions=[ETL]))
    assert explained(found, 3000) == (
        "orders-0: 6 wait behind the open transaction of 'etl', since 1970-01-01 00:00:30Z."
        " read_committed members see nothing beyond it."
    )
    (hanging,) = findings(seen(4, **held))
    assert "producer 7, which no coordinator knows, since 1970-01-01 00:01:00Z" in explained(
        hanging, 3000
    )
    # What can be read is not waiting for the transaction.
    assert causes(seen(2, **held, transactions=[ETL])) == [Cause.NOT_COMMITTING]


def test_a_group_that_has_committed_nothing_waits_in_a_sentence_too() -> None:
    waiting = Finding(Cause.OPEN_TRANSACTION, "orders", 0, -1, transactional_id="etl")
    assert explained(waiting, 3000).startswith(
        "orders-0: nothing is committed, and all records lie behind the open transaction of 'etl'"
    )


def test_every_cause_is_a_sentence() -> None:
    for cause in Cause:
        assert explained(Finding(cause, "orders", 0, 5), 3000).endswith(".")
