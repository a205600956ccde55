"""`magnetar transactions`: list, describe, abort, hanging.

Here are options, help and what is printed. `magnetar.client.transactions` and `transaction_aborts`,
which ask the brokers, are imported when a command is called.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.commands import (
    DURATION,
    Commands,
    Connect,
    asks_brokers,
    json_output,
    print_json,
    print_table,
)
from magnetar.cli.tables import fields, table
from magnetar.client.readable import ABSENT, count, duration, moment

if TYPE_CHECKING:
    from magnetar.client import TopicPartition
    from magnetar.client.partitions import OpenProducer
    from magnetar.client.transactions import Transaction

_PARTITIONS_SHOWN = 2
#: The default of transaction.max.timeout.ms: a younger transaction may still be at work.
_HANGING_AFTER = "15m"


@click.group(cls=Commands)
def transactions() -> None:
    """Look at transactions, and abort them."""


@transactions.command("list", short_help="List transactions, and the records that they hold back.")
@click.option("--open", "only_open", is_flag=True, help="Only transactions that have not ended.")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    multiple=True,
    help="Only transactions in this state, such as Ongoing. Repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=int,
    multiple=True,
    help="Only of this producer. Repeatable.",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    metavar="DURATION",
    type=DURATION,
    help="Only transactions open for longer than this: 30s, 15m.",
)
@click.option("--pattern", help="Only ids that this regular expression (RE2) matches whole.")
@json_output
@asks_brokers
def list_command(
    connect: Connect,
    only_open: bool,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str | None,
    as_json: bool,
) -> None:
    """List transactional ids, and the records that their open transactions hold back."""
    from magnetar.client import transactions as queries

    every = {str(state) for state in queries.State}
    if unknown := [state for state in states if state not in every]:
        raise click.BadParameter(
            f"{unknown[0]!r} is no state. There are: {', '.join(queries.State)}.",
            param_hint="--state",
        )
    wanted = set(states) or every
    # Only open transactions have a duration: the broker counts from the last begin, also of ended
    # ones.
    if only_open or longer_than_ms is not None:
        wanted = wanted & queries.OPEN_STATES
    with connect() as client:
        found: list[Transaction] = []
        # The states asked for may exclude each other, and an empty filter would mean all states.
        if wanted:
            found = queries.list_transactions(
                client,
                # Apache Kafka refuses states that it does not have, so "all" is no filter.
                states=[] if wanted == every else sorted(wanted),
                producer_ids=producer_ids,
                longer_than_ms=-1 if longer_than_ms is None else longer_than_ms,
                pattern=pattern,
            )
        queries.fill_open_partitions(client, found)
        children = queries.describe_children(client, found)
    now_ms = queries.now_ms()
    if as_json:
        return print_json(each.to_json(now_ms) for each in found)
    header = ["transactional id", "txn id", "state", "producer id", "open for", "holds back"]
    rows = [_row(each, now_ms) for each in found]
    # Apache Kafka has no joint transactions: there the column would be empty in every row.
    if any(each.parent_id is not None or each.children for each in found):
        header.append("votes")
        for row, each in zip(rows, found, strict=True):
            row.append(_votes(each, children.get(each.transactional_id, ())))
    print_table(header, rows, "no transactions")


@transactions.command("describe", short_help="Show transactional ids with their open transactions.")
@click.argument("transactional_ids", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@json_output
@asks_brokers
def describe_command(connect: Connect, transactional_ids: tuple[str, ...], as_json: bool) -> None:
    """Show transactional ids, and the partitions in which their transactions are open."""
    from magnetar.client import transactions as queries

    with connect() as client:
        found = queries.describe(client, transactional_ids)
        children = queries.describe_children(client, found)
        queries.fill_open_partitions(
            client, [*found, *(each for those in children.values() for each in those)]
        )
    now_ms = queries.now_ms()
    if as_json:
        return print_json(
            {
                **each.to_json(now_ms),
                "children": [
                    child.to_json(now_ms) for child in children.get(each.transactional_id, ())
                ],
            }
            for each in found
        )
    print(
        "\n\n".join(
            _described(each, now_ms, children.get(each.transactional_id, ())) for each in found
        )
    )


@transactions.command("abort")
@click.argument("transactional_id", required=False)
@click.option("--topic", help="The topic of a hanging transaction.")
@click.option("--partition", metavar="N", type=click.IntRange(min=0), help="Its partition.")
@click.option(
    "--start-offset",
    metavar="N",
    type=click.IntRange(min=0),
    help="Its first offset in the partition.",
)
@click.option(
    "--force", is_flag=True, help="Write the marker even if a coordinator knows the transaction."
)
@json_output
@asks_brokers
def abort_command(
    connect: Connect,
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Abort a transaction.

    With a TRANSACTIONAL_ID: its coordinator aborts the open transaction in all its partitions and
    fences the producer, which gets an error when it goes on.

    With --topic, --partition and --start-offset: a marker in that partition aborts a hanging
    transaction, which `magnetar transactions hanging` finds.
    """
    from magnetar.client import ClientError
    from magnetar.client.transaction_aborts import (
        VoteSealed,
        abort_in_partition,
        abort_transaction,
    )

    if transactional_id is not None:
        # Together they could mean different transactions; an abort cannot be undone.
        if topic is not None or partition is not None or start_offset is not None or force:
            raise click.UsageError("TRANSACTIONAL_ID and a partition exclude each other.")
        try:
            with connect() as client:
                transaction = abort_transaction(client, transactional_id)
        except VoteSealed as sealed:
            raise ClientError(
                f"{sealed} `magnetar transactions abort {shlex.quote(sealed.parent_id)}` aborts"
                " them both."
            ) from None
        text = f"aborted {_titled(transaction)}; producer {transaction.producer_id} is fenced"
        aborted: dict[str, Any] = {
            "transactional_id": transactional_id,
            "txn_id": transaction.txn_id,
            "producer_id": transaction.producer_id,
        }
    elif topic is None or partition is None or start_offset is None:
        raise click.UsageError(
            "Name a TRANSACTIONAL_ID, or --topic, --partition and --start-offset."
        )
    else:
        with connect() as client:
            found = abort_in_partition(client, (topic, partition), start_offset, force=force)
        text = f"aborted in {topic}-{partition} what producer {found.producer_id} had open there"
        aborted = found.to_json()
    if as_json:
        return print_json([aborted])
    print(text)


@transactions.command("hanging", short_help="Find transactions that no coordinator knows.")
@click.option("--topic", help="Only in this topic.")
@click.option(
    "--partition",
    metavar="N",
    type=click.IntRange(min=0),
    help="Only in this partition of --topic.",
)
@click.option(
    "--max-transaction-timeout",
    "older_than_ms",
    metavar="DURATION",
    type=DURATION,
    default=_HANGING_AFTER,
    show_default=True,
    help="Ignore transactions written to within this time: your transaction.max.timeout.ms.",
)
@json_output
@asks_brokers
def hanging_command(
    connect: Connect,
    topic: str | None,
    partition: int | None,
    older_than_ms: int,
    as_json: bool,
) -> None:
    """Find transactions that are open in a partition although no coordinator knows them.

    magnetar ends such transactions by itself. A cluster of Apache Kafka may have some.
    """
    from magnetar.client import transactions as queries

    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic.")
    with connect() as client:
        partitions: Sequence[TopicPartition] | None = None
        if topic is not None:
            partitions = [(topic, partition)] if partition is not None else None
            partitions = partitions or sorted(client.topics([topic]))
        found = queries.find_hanging(client, partitions, older_than_ms)
    if as_json:
        return print_json(each.to_json() for each in found)
    header = (
        "topic",
        "partition",
        "start offset",
        "producer id",
        "producer epoch",
        "coordinator epoch",
        "last timestamp",
        "holds back",
    )
    print_table(header, [_hanging_row(each) for each in found], "no transaction hangs")
    if found:
        print(
            # Never done here: whether a transaction hangs or is slow is for a person to judge.
            f"\nTo abort the first: magnetar transactions abort --topic {found[0].topic}"
            f" --partition {found[0].partition} --start-offset {found[0].start_offset}",
            file=sys.stderr,
        )


def _titled(transaction: Transaction) -> str:
    txn_id = "" if transaction.txn_id is None else f" ({transaction.txn_id})"
    return f"{transaction.transactional_id}{txn_id}"


def _row(transaction: Transaction, now_ms: int) -> list[str]:
    return [
        transaction.transactional_id,
        transaction.txn_id or ABSENT,
        transaction.state,
        str(transaction.producer_id),
        duration(transaction.open_for_ms(now_ms)) if transaction.is_open else ABSENT,
        _held_back(transaction.open_in),
    ]


def _votes(transaction: Transaction, children: Sequence[Transaction]) -> str:
    """Return the parent that a child votes for, or how many of a parent's open children voted."""
    if transaction.parent_id is not None:
        return f"for {transaction.parent_id}" if transaction.has_voted else ABSENT
    voted = sum(child.has_voted for child in children)
    return f"{voted} of {len(children)}" if children else ABSENT


def _held_back(open_in: Iterable[OpenProducer]) -> str:
    """Return the partitions in which readers wait, the one with most records first."""
    # The worst first: the list is cut after two.
    holding = sorted(
        (each for each in open_in if each.records_held_back),
        key=lambda each: (-each.records_held_back, each.topic, each.partition),
    )
    shown = [
        f"{each.topic}-{each.partition} ({_records(each.records_held_back)})"
        for each in holding[:_PARTITIONS_SHOWN]
    ]
    if len(holding) > _PARTITIONS_SHOWN:
        shown.append(f"{len(holding) - _PARTITIONS_SHOWN} more")
    return ", ".join(shown) or ABSENT


def _records(number: int) -> str:
    return f"{count(number)} record{'' if number == 1 else 's'}" if number else ABSENT


def _described(transaction: Transaction, now_ms: int, children: Sequence[Transaction]) -> str:
    started = moment(transaction.started_ms)
    if transaction.is_open:
        started += f" ({duration(transaction.open_for_ms(now_ms))} ago)"
    partitions = ", ".join(f"{topic}-{index}" for topic, index in transaction.partitions)
    shown = fields(
        (
            ("transactional id", transaction.transactional_id),
            ("txn id", transaction.txn_id or ABSENT),
            ("state", transaction.state),
            ("coordinator", str(transaction.coordinator)),
            ("producer id", str(transaction.producer_id)),
            ("producer epoch", str(transaction.producer_epoch)),
            ("transaction timeout", duration(transaction.timeout_ms)),
            ("started", started),
            ("partitions", partitions or ABSENT),
            *([("parent", transaction.parent_id)] if transaction.parent_id is not None else ()),
        )
    )
    if children:
        header = ("child", "state", "producer id", "open for", "holds back")
        rows = [_child_row(child, now_ms) for child in children]
        shown += f"\n\n{table(header, rows)}"
    if transaction.open_in:
        header = ("topic", "partition", "start offset", "last timestamp", "holds back")
        rows = [_place_row(each) for each in transaction.open_in]
        shown += f"\n\n{table(header, rows)}"
    return shown


def _child_row(child: Transaction, now_ms: int) -> tuple[str, ...]:
    return (
        child.transactional_id,
        child.state,
        str(child.producer_id),
        duration(child.open_for_ms(now_ms)),
        _held_back(child.open_in),
    )


def _place_row(each: OpenProducer) -> tuple[str, ...]:
    return (
        each.topic,
        str(each.partition),
        str(each.start_offset),
        moment(each.last_timestamp),
        _records(each.records_held_back),
    )


def _hanging_row(each: OpenProducer) -> tuple[str, ...]:
    return (
        each.topic,
        str(each.partition),
        str(each.start_offset),
        str(each.producer_id),
        str(each.producer_epoch),
        ABSENT if each.coordinator_epoch < 0 else str(each.coordinator_epoch),
        moment(each.last_timestamp),
        _records(each.records_held_back),
    )
