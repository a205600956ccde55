"""`magnetar offsets` and `magnetar trim`: offsets of partitions, and those of a group, deleted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import (
    EXIT_FAILURE,
    Commands,
    Connect,
    asks_brokers,
    complete_groups,
    complete_topics,
    confirm,
    json_output,
    never_asks,
    print_json,
    print_table,
)
from magnetar.cli.where import begin_of, selected
from magnetar.client.readable import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar.client.trimming import Trim

_SELECTION = "TOPIC[:0,1]"


@click.group(cls=Commands)
def offsets() -> None:
    """Look up offsets; delete those that groups committed."""


@offsets.command("list")
@click.argument("topics", metavar=f"{_SELECTION}...", nargs=-1, required=True)
@click.option(
    "--at",
    metavar="WHERE",
    default="end",
    show_default=True,
    help="beginning, end, -5 (the fifth from the end), -5m (five minutes ago), s@TIME.",
)
@json_output
@asks_brokers
def list_command(connect: Connect, topics: tuple[str, ...], at: str, as_json: bool) -> None:
    """Print the offset that --at stands for in each partition.

    \b
    magnetar offsets list orders --at beginning
    magnetar offsets list orders:0,2 --at s@2026-11-21T15:00
    """
    from magnetar.client.partitions import READ_UNCOMMITTED

    begin = begin_of(at, "--at")
    assert begin is not None
    with connect() as client:
        places = selected(client, topics)
        leaders = client.topics({topic for topic, _ in places})
        found = begin.resolve(client, leaders, places, READ_UNCOMMITTED)
    if as_json:
        return print_json(
            {"topic": topic, "partition": index, "offset": offset}
            for (topic, index), offset in sorted(found.items())
        )
    rows = [(topic, str(index), count(offset)) for (topic, index), offset in sorted(found.items())]
    print_table(("topic", "partition", "offset"), rows, "no partitions")


@offsets.command("delete", short_help="Delete offsets that a group has committed.")
@click.argument("group_id", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    metavar=_SELECTION,
    multiple=True,
    required=True,
    shell_complete=complete_topics,
    help="A topic, or some of its partitions. Repeatable.",
)
@never_asks
@json_output
@asks_brokers
def delete_command(
    connect: Connect, group_id: str, topics: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Delete the offsets that a group has committed in partitions whose topic no member reads.

    \b
    magnetar offsets delete billing --topic orders:0,2
    """
    from magnetar.client.group_offsets import delete_offsets

    with connect() as client:
        places = selected(client, topics)
        confirm(f"Delete the offsets of {group_id} in {len(places)} partitions?", yes=yes)
        codes = delete_offsets(client, group_id, places)
    failed = {place: code for place, code in codes.items() if code}
    if as_json:
        print_json(
            {
                "group": group_id,
                "topic": topic,
                "partition": index,
                "deleted": not code,
                "error": code.name if code else None,
            }
            for (topic, index), code in sorted(codes.items())
        )
    else:
        for (topic, index), code in sorted(codes.items()):
            if not code:
                print(f"{topic}-{index}: deleted")
        for (topic, index), code in sorted(failed.items()):
            print(f"magnetar: error: {topic}-{index}: {code.name}", file=sys.stderr)
    if failed:
        raise SystemExit(EXIT_FAILURE)


@click.command("trim", short_help="Delete the first records of partitions.")
@click.argument(
    "topics",
    metavar=f"{_SELECTION}...",
    nargs=-1,
    required=True,
    shell_complete=complete_topics,
)
@click.option(
    "--before",
    metavar="WHERE",
    required=True,
    help="The first record that stays: 17, end, -5 (the last five), -7d (of seven days), s@TIME.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, delete nothing.")
@never_asks
@json_output
@asks_brokers
def trim(
    connect: Connect,
    topics: tuple[str, ...],
    before: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete all records before a place in each partition.

    An offset beyond the end of one of the partitions is refused, and nothing is deleted.

    \b
    magnetar trim orders --before -7d --dry-run
    magnetar trim orders:0 --before 1000
    """
    from magnetar.client.partitions import READ_UNCOMMITTED
    from magnetar.client.trimming import plan_trims
    from magnetar.client.trimming import trim as delete_records

    begin = begin_of(before, "--before")
    assert begin is not None
    with connect() as client:
        places = selected(client, topics)
        leaders = client.topics({topic for topic, _ in places})
        wanted = begin.resolve(client, leaders, places, READ_UNCOMMITTED)
        trims = plan_trims(client, leaders, wanted)
        _refuse_beyond_end(wanted, trims)
        if not dry_run:
            doomed = count(sum(map(_offsets, trims)))
            confirm(f"Delete {doomed} offsets in {len(trims)} partitions?", yes=yes)
            trims = delete_records(client, leaders, trims)
    if as_json:
        return print_json({**each.to_json(), "trimmed": not dry_run} for each in trims)
    rows = [
        (
            each.topic,
            str(each.partition),
            count(each.start),
            count(each.new_start),
            count(_offsets(each)),
        )
        for each in trims
    ]
    print_table(("topic", "partition", "start", "new start", "offsets"), rows, "no partitions")
    if dry_run:
        print("\nNothing was deleted.", file=sys.stderr)


def _refuse_beyond_end(wanted: Mapping[tuple[str, int], int], trims: list[Trim]) -> None:
    """Raise OFFSET_OUT_OF_RANGE where a partition ends before the offset that is wanted."""
    from magnetar.client import Refused
    from magnetar.client.trimming import beyond_end
    from wire.error_code import ErrorCode

    if (each := beyond_end(trims, wanted)) is not None:
        raise Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{each.topic}-{each.partition}",
            f"it ends at {each.new_start}, before offset {wanted[each.place]}. Nothing was"
            " deleted. Write --before end to delete all records",
        )


def _offsets(each: Trim) -> int:
    return each.new_start - each.start
