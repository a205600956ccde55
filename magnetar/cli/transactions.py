"""`magnetar transactions`: list, describe, abort, hanging.

Options, help and what is printed; what is asked is in `transaction_queries`, imported when a
command is called. Exit codes: 0 done, 1 the broker could not be reached or refused, 2 a mistake in
the options.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.commands import Commands
from magnetar.cli.options import (
    DURATION,
    bootstrap,
    json_output,
    print_json,
    reports_errors,
    timeout,
)
from magnetar.cli.readable import (
    ABSENT,
    count,
    duration,
    fields,
    moment,
    table,
)

if TYPE_CHECKING:
    from magnetar.client.cluster import TopicPartition
    from magnetar.client.partitions import OpenProducer
    from magnetar.client.transactions import Transaction

_PARTITIONS_SHOWN = 2
_HANGING_AFTER = "15m"


@click.group(cls=Commands)
def transactions() -> None:
    """Look at transactions, and abort them."""


@transactions.command("list", short_help="List transactions, and what they hold back.")
@click.option("--open", "only_open", is_flag=True, help="Only those that are not ended.")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    multiple=True,
    help="Only those in this state, as Kafka spells it: Ongoing. Repeatable.",
)
@click.option(
    "--producer-id", "producer_ids", type=int, multiple=True, help="Only of it. Repeatable."
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    metavar="DURATION",
    type=DURATION,
    help="Only those open for longer: 30s, 15m.",
)
@click.option("--pattern", help="Only ids that this regular expression (RE2) matches whole.")
@json_output
@bootstrap
@timeout
@reports_errors
def list_command(
    only_open: bool,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str | None,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """List transactional ids, with what their open transactions hold back from readers."""
    from magnetar.client import transactions as queries
    from magnetar.client.cluster import Client

    unknown = [state for state in states if state not in queries.STATES]
    if unknown:
        raise click.BadParameter(
            f"{unknown[0]!r} is no state. There are: {', '.join(queries.STATES)}.",
            param_hint="--state",
        )
    wanted = set(states) or set(queries.STATES)
    if only_open or longer_than_ms is not None:
        wanted &= queries.OPEN_STATES
    with Client(bootstrap_server, timeout_ms / 1000) as client:
        found: list[Transaction] = []
        if wanted:
            found = queries.list_transactions(
                client,
                states=[] if len(wanted) == len(queries.STATES) else sorted(wanted),
                producer_ids=producer_ids,
                longer_than_ms=-1 if longer_than_ms is None else longer_than_ms,
                pattern=pattern,
            )
        queries.with_open_partitions(client, found)
        children = queries.describe_children(client, found)
    now_ms = queries.now_ms()
    if as_json:
        print_json(each.to_json(now_ms) for each in found)
        return
    if not found:
        print("no transactions", file=sys.stderr)
        return
    header = ["transactional id", "txn id", "state", "producer id", "open for", "holds back"]
    rows = [_row(each, now_ms) for each in found]
    if any(each.parent_id is not None or each.children for each in found):
        header.append("votes")
        for row, each in zip(rows, found, strict=True):
            row.append(_votes(each, children.get(each.transactional_id, ())))
    print(table(header, rows))


@transactions.command("describe", short_help="Show all that is known of transactional ids.")
@click.argument("transactional_ids", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@json_output
@bootstrap
@timeout
@reports_errors
def describe_command(
    transactional_ids: tuple[str, ...], as_json: bool, bootstrap_server: str, timeout_ms: int
) -> None:
    """Show all that is known of transactional ids, and where their transactions are open."""
    from magnetar.client import transactions as queries
    from magnetar.client.cluster import Client

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        found = queries.describe(client, transactional_ids)
        children = queries.describe_children(client, found)
        queries.with_open_partitions(
            client, [*found, *(each for those in children.values() for each in those)]
        )
    now_ms = queries.now_ms()
    if as_json:
        print_json(
            each.to_json(now_ms)
            | {
                "children": [
                    child.to_json(now_ms) for child in children.get(each.transactional_id, ())
                ]
            }
            for each in found
        )
        return
    print(
        "\n\n".join(
            _described(each, now_ms, children.get(each.transactional_id, ())) for each in found
        )
    )


@transactions.command("abort")
@click.argument("transactional_id", required=False)
@click.option("--topic", help="With --partition and --start-offset: a transaction that hangs.")
@click.option("--partition", metavar="N", type=click.IntRange(min=0), help="Where it hangs.")
@click.option(
    "--start-offset", metavar="N", type=click.IntRange(min=0), help="Where it begins there."
)
@click.option("--force", is_flag=True, help="Write the marker even if it does not hang.")
@json_output
@bootstrap
@timeout
@reports_errors
def abort_command(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    force: bool,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Abort a transaction.

    With a TRANSACTIONAL_ID: the open transaction of that id, in all its partitions, through its
    coordinator. Its producer is fenced: whoever still uses it gets an error.

    With --topic, --partition and --start-offset: a hanging transaction, as `magnetar transactions
    hanging` finds them, in that partition, by a marker.
    """
    from magnetar.client.cluster import Client
    from magnetar.client.transaction_aborts import abort_in_partition, abort_transaction

    if transactional_id is not None:
        if topic is not None or partition is not None or start_offset is not None or force:
            raise click.UsageError("TRANSACTIONAL_ID and a partition exclude each other.")
        with Client(bootstrap_server, timeout_ms / 1000) as client:
            transaction = abort_transaction(client, transactional_id)
        text = f"aborted {_titled(transaction)}; producer {transaction.producer_id} is fenced"
        aborted: dict[str, Any] = {
            "transactional_id": transactional_id,
            "txn_id": None if transaction.txn_id is None else str(transaction.txn_id),
            "producer_id": transaction.producer_id,
        }
    elif topic is None or partition is None or start_offset is None:
        raise click.UsageError(
            "Name a TRANSACTIONAL_ID, or --topic, --partition and --start-offset."
        )
    else:
        with Client(bootstrap_server, timeout_ms / 1000) as client:
            found = abort_in_partition(client, (topic, partition), start_offset, force=force)
        text = f"aborted in {topic}-{partition} what producer {found.producer_id} had open there"
        aborted = found.to_json()
    print(json.dumps({"aborted": aborted}) if as_json else text)


@transactions.command("hanging", short_help="Find transactions that no coordinator knows of.")
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
    help="Leave alone what was written to within this time: transaction.max.timeout.ms.",
)
@json_output
@bootstrap
@timeout
@reports_errors
def hanging_command(
    topic: str | None,
    partition: int | None,
    older_than_ms: int,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Find transactions that are open in a partition although no coordinator knows of them.

    magnetar ends these by itself; in a log directory of Apache Kafka there may be some.
    """
    from magnetar.client import transactions as queries
    from magnetar.client.cluster import Client

    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic.")
    with Client(bootstrap_server, timeout_ms / 1000) as client:
        partitions: Sequence[TopicPartition] | None = None
        if topic is not None:
            partitions = [(topic, partition)] if partition is not None else None
            partitions = partitions or sorted(client.topics([topic]))
        found = queries.find_hanging(client, partitions, older_than_ms)
    if as_json:
        print_json(each.to_json() for each in found)
        return
    if not found:
        print("no transaction hangs", file=sys.stderr)
        return
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
    print(table(header, [_hanging_row(each) for each in found]))
    print(
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
        ABSENT if transaction.txn_id is None else str(transaction.txn_id),
        transaction.state,
        str(transaction.producer_id),
        duration(transaction.open_for_ms(now_ms)) if transaction.is_open else ABSENT,
        _held_back(transaction.open_in),
    ]


def _votes(transaction: Transaction, children: Sequence[Transaction]) -> str:
    """Say whose vote it is, or how many of a parent's children that are not ended have voted."""
    if transaction.parent_id is not None:
        return f"for {transaction.parent_id}" if transaction.has_voted else ABSENT
    voted = sum(child.has_voted for child in children)
    return f"{voted} of {len(children)}" if children else ABSENT


def _held_back(open_in: Iterable[OpenProducer]) -> str:
    """Name the partitions in which readers wait, the fullest first."""
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
            ("txn id", ABSENT if transaction.txn_id is None else str(transaction.txn_id)),
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
