"""`magnetar why`: says in sentences why a group does not advance."""

from __future__ import annotations

import click

from magnetar.cli.commands import (
    DURATION,
    Connect,
    asks_brokers,
    complete_groups,
    json_output,
    print_json,
)


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

    The group may have no members, partitions without a member, or members that commit nothing. Or
    its members have read all committed records and wait for an open transaction, which is named.
    """
    from magnetar.client.readable import one_line
    from magnetar.client.standstill import explained, findings, look

    with connect() as client:
        found = findings(look(client, group_id, watched_ms / 1000))
    if as_json:
        return print_json(each.to_json() for each in found)
    for each in found:
        print(one_line(explained(each, watched_ms)))
    if not found:
        print(f"{group_id} has read everything.")
