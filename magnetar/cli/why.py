"""`magnetar why`: says in sentences why a group does not advance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import (
    DURATION,
    Connect,
    asks_brokers,
    complete_groups,
    json_output,
    print_json,
)
from magnetar.cli.readable import count, moment

if TYPE_CHECKING:
    from magnetar.client.standstill import Finding


@click.command("why", short_help="Say why a group does not advance.")
@click.argument("group_id", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--for",
    "watched_ms",
    metavar="DURATION",
    type=DURATION,
    default="3s",
    show_default=True,
    help="How long to watch what the group commits.",
)
@json_output
@asks_brokers
def why(connect: Connect, group_id: str, watched_ms: int, as_json: bool) -> None:
    """Say why a group does not advance.

    It may have no members, or members without some partitions, or members that commit nothing. Or
    they have read all that is committed, and wait for an open transaction, which is named.
    """
    from magnetar.client.standstill import findings, look

    with connect() as client:
        found = findings(look(client, group_id, watched_ms / 1000))
    if as_json:
        return print_json(each.to_json() for each in found)
    for each in found:
        print(explained(each, watched_ms))
    if not found:
        print(f"{group_id} has read everything.")


def explained(finding: Finding, watched_ms: int) -> str:
    """Return a finding as a sentence."""
    from magnetar.client.standstill import Cause

    place = f"{finding.topic}-{finding.partition}"
    waiting = f"{count(finding.lag)} wait" if finding.lag >= 0 else "nothing is committed"
    watched = f"in {watched_ms / 1000:g} s"
    return {
        Cause.NO_MEMBERS: "The group has no members: no consumer runs, or none gets in.",
        Cause.REBALANCING: "The group is rebalancing: its members do not have partitions yet.",
        Cause.NOT_ASSIGNED: f"{place}: {waiting}, and no member reads the partition.",
        Cause.NOT_COMMITTING: (
            f"{place}: {waiting}. Member {finding.member_id} has the partition, and committed"
            f" nothing {watched}."
        ),
        Cause.ADVANCING: (
            f"{place}: {waiting}; the group advances, by {count(finding.advanced)} {watched}."
        ),
        Cause.OPEN_TRANSACTION: (
            f"{place}: {waiting} behind the open transaction of {_owner(finding)}, since"
            f" {moment(-1 if finding.open_since_ms is None else finding.open_since_ms)}."
            " read_committed members see nothing beyond it."
        ),
    }[finding.cause]


def _owner(finding: Finding) -> str:
    if finding.transactional_id is not None:
        return repr(finding.transactional_id)
    return f"producer {finding.producer_id}, which no coordinator knows"
