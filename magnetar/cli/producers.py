"""`magnetar producers`: what partitions remember of idempotent and transactional producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import (
    Connect,
    asks_brokers,
    complete_topics,
    json_output,
    print_json,
    print_table,
)
from magnetar.cli.where import selected
from magnetar.client.readable import known, moment

if TYPE_CHECKING:
    from magnetar.client.partitions import Producer

_HEADER = (
    "topic",
    "partition",
    "producer id",
    "epoch",
    "last sequence",
    "last timestamp",
    "open from",
)


@click.command("producers", short_help="Show the producers that partitions remember.")
@click.argument(
    "topics",
    metavar="TOPIC[:0,1]...",
    nargs=-1,
    required=True,
    shell_complete=complete_topics,
)
@click.option("--open", "only_open", is_flag=True, help="Only with an open transaction.")
@json_output
@asks_brokers
def producers(connect: Connect, topics: tuple[str, ...], only_open: bool, as_json: bool) -> None:
    """Show the idempotent and transactional producers that partitions remember.

    OPEN FROM is the first offset of an open transaction. Readers of committed records wait there.
    """
    from magnetar.client.partitions import describe_producers

    with connect() as client:
        places = selected(client, topics)
        leaders = client.topics({topic for topic, _ in places})
        found = describe_producers(client, leaders, places)
    shown = [each for each in found if each.open_from >= 0 or not only_open]
    if as_json:
        return print_json(each.to_json() for each in shown)
    print_table(_HEADER, map(_row, shown), "no producers")


def _row(each: Producer) -> tuple[str, ...]:
    return (
        each.topic,
        str(each.partition),
        str(each.producer_id),
        str(each.producer_epoch),
        known(each.last_sequence),
        moment(each.last_timestamp),
        known(each.open_from),
    )
