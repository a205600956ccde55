"""`magnetar groups`: list, describe, lag, reset, delete.

Here are options, help and what is printed. `magnetar.client.groups` and `group_offsets`, which ask
the brokers, are imported when a command is called.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.commands import (
    DURATION,
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
from magnetar.cli.tables import fields, table
from magnetar.cli.where import selected
from magnetar.client.readable import ABSENT, count, known, parse_moment

if TYPE_CHECKING:
    from magnetar.client import TopicPartition
    from magnetar.client.group_offsets import Target
    from magnetar.client.groups import Group, Member, Position

_NAMED_MAX = 4
#: Kafka's, in KIP-848, KIP-932 and KIP-1071 too. magnetar has groups of some of them only.
_STATES = (
    *("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Dead"),
    *("Assigning", "Reconciling", "NotReady"),
)
_TYPES = ("classic", "consumer", "share", "streams")
_POSITION = ("topic", "partition", "committed", "end", "lag", "member")


class _OneOf(click.ParamType[str]):
    """One of some names, in capitals or not. click's own choice shows them in small letters."""

    name = "name"

    def __init__(self, names: Sequence[str]) -> None:
        self._names = {name.lower(): name for name in names}

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> str:
        found = self._names.get(str(value).lower())
        if found is None:
            self.fail(f"{value!r} is not one of {', '.join(self._names.values())}.", param, context)
        return found


@click.group(cls=Commands)
def groups() -> None:
    """Look at consumer groups, move their offsets, delete them."""


@groups.command("list")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    type=_OneOf(_STATES),
    multiple=True,
    help="Only groups in this state, such as Stable. Repeatable.",
)
@click.option(
    "--type",
    "kinds",
    metavar="TYPE",
    type=_OneOf(_TYPES),
    multiple=True,
    help="Only this type: classic or consumer. Repeatable.",
)
@json_output
@asks_brokers
def list_command(
    connect: Connect,
    states: tuple[str, ...],
    kinds: tuple[str, ...],
    as_json: bool,
) -> None:
    """List groups."""
    from magnetar.client import groups as queries

    with connect() as client:
        found = queries.list_groups(client, states=states, kinds=kinds)
    if as_json:
        return print_json(group.to_json() for group in found)
    rows = [
        (group.group_id, group.state, group.kind, group.protocol or ABSENT, str(group.coordinator))
        for group in found
    ]
    print_table(("group", "state", "type", "protocol", "coordinator"), rows, "no groups")


@groups.command("describe", short_help="Show groups, their members, and how far they have read.")
@click.argument(
    "group_ids", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups
)
@json_output
@asks_brokers
def describe_command(connect: Connect, group_ids: tuple[str, ...], as_json: bool) -> None:
    """Show groups: their state, the partitions of each member, and the lag of each partition."""
    from magnetar.client import groups as queries

    with connect() as client:
        described = queries.describe_groups(client, group_ids)
        found = list(zip(described, queries.positions_of(client, described), strict=True))
    if as_json:
        return print_json(
            {**group.to_json(), "partitions": [each.to_json() for each in positions]}
            for group, positions in found
        )
    print("\n\n".join(_described(group, positions) for group, positions in found))


@groups.command("lag", short_help="Show how far groups have read.")
@click.argument("group_ids", metavar="[GROUP...]", nargs=-1, shell_complete=complete_groups)
@click.option("--topic", shell_complete=complete_topics, help="Only in this topic.")
@json_output
@asks_brokers
def lag_command(
    connect: Connect,
    group_ids: tuple[str, ...],
    topic: str | None,
    as_json: bool,
) -> None:
    """Show how far groups have read; without a GROUP, all of them.

    LAG counts the offsets from the committed one to the end of the partition, so transaction
    markers count too.
    """
    from magnetar.client import groups as queries

    with connect() as client:
        if group_ids:
            wanted = queries.describe_groups(client, group_ids)
        else:
            # Without those that end in between, and without share groups.
            listed = [each.group_id for each in queries.list_groups(client)]
            wanted = sorted(
                queries.known_groups(client, listed).values(), key=lambda each: each.group_id
            )
        found = [
            (group.group_id, each)
            for group, positions in zip(wanted, queries.positions_of(client, wanted), strict=True)
            for each in positions
            if topic is None or each.topic == topic
        ]
    if as_json:
        return print_json({"group": group_id, **each.to_json()} for group_id, each in found)
    print_table(
        ("group", *_POSITION),
        [(group_id, *_position_row(each)) for group_id, each in found],
        "nothing is committed and nothing is read",
    )


@groups.command("reset")
@click.argument("group_id", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:0,1]",
    multiple=True,
    help="A topic, or some of its partitions. Repeatable.",
)
@click.option("--all-topics", is_flag=True, help="All partitions with a committed offset.")
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="Behind the last record.")
@click.option(
    "--to-current", is_flag=True, help="To the committed offset, or to latest if there is none."
)
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option("--shift-by", type=int, metavar="N", help="N records forward; back if N is negative.")
@click.option(
    "--to-datetime", metavar="TIME", help="To the first record since then: 2026-11-21T13:05:12Z."
)
@click.option(
    "--by-duration", type=DURATION, help="To the first record of the last 2h, for example."
)
@click.option("--execute", is_flag=True, help="Commit the offsets. Without it nothing changes.")
@click.option("--dry-run", is_flag=True, help="Show the new offsets, change nothing: the default.")
@json_output
@asks_brokers
def reset_command(
    connect: Connect,
    group_id: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: int | None,
    execute: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move the offsets of a group without members. Without --execute it shows the new offsets only.

    An offset outside a partition becomes its first offset or its end.

    \b
    magnetar groups reset billing --topic orders --to-datetime 2026-11-21T00:00Z
    magnetar groups reset billing --topic orders:0,2 --shift-by -100 --execute
    """
    # No default: to move every offset of a group by mistake cannot be undone.
    if bool(topics) == all_topics:
        raise click.UsageError("Name --topic, or --all-topics.")
    if execute and dry_run:
        raise click.UsageError("--execute and --dry-run exclude each other.")
    target = _target(
        {"to_earliest": to_earliest, "to_latest": to_latest, "to_current": to_current},
        to_offset,
        shift_by,
        to_datetime,
        by_duration,
    )
    from magnetar.client import groups as queries
    from magnetar.client.group_offsets import commit_moves, plan

    with connect() as client:
        moves = plan(client, group_id, selected(client, topics) if topics else None, target)
        if not moves:
            # For its error if there is no such group: the name may be mistyped.
            queries.describe_groups(client, [group_id])
        if execute:
            commit_moves(client, group_id, moves)
    if as_json:
        return print_json({"executed": execute, **move.to_json()} for move in moves)
    rows = [
        (each.topic, str(each.partition), known(each.committed), count(each.planned))
        for each in moves
    ]
    header = ("topic", "partition", "committed", "new")
    print_table(header, rows, f"group {group_id} has committed nothing")
    # On standard error: the table may go on to another program.
    if moves and not execute:
        print("\nNothing was changed. --execute commits the new offsets.", file=sys.stderr)


@groups.command("delete")
@click.argument(
    "group_ids", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups
)
@never_asks
@json_output
@asks_brokers
def delete_command(connect: Connect, group_ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete groups without members, and their committed offsets."""
    from magnetar.client import groups as queries

    with connect() as client:
        # After the connection: there is nothing to ask if no broker is there.
        confirm(f"Delete {', '.join(group_ids)} with all offsets?", yes=yes)
        codes = queries.delete_groups(client, group_ids)
    # Some may be deleted and others not: what was done is printed, then the exit code tells of the
    # rest.
    failed = {group_id: code for group_id, code in codes.items() if code}
    if as_json:
        print_json(
            {"group": group_id, "deleted": not code, "error": code.name if code else None}
            for group_id, code in codes.items()
        )
    else:
        for group_id in codes:
            if group_id not in failed:
                print(f"{group_id}: deleted")
        for group_id, code in failed.items():
            print(f"magnetar: error: group {group_id!r}: {code.name}", file=sys.stderr)
    if failed:
        raise SystemExit(EXIT_FAILURE)


def _target(
    flags: dict[str, bool],
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: int | None,
) -> Target:
    """Return the one target that is named. UsageError: none is, or several are."""
    from magnetar.client import group_offsets

    targets: list[Target] = [getattr(group_offsets, name) for name, given in flags.items() if given]
    if to_offset is not None:
        targets.append(group_offsets.to_offset(to_offset))
    if shift_by is not None:
        targets.append(group_offsets.shifted(shift_by))
    if to_datetime is not None:
        try:
            targets.append(parse_moment(to_datetime))
        except ValueError:
            raise click.BadParameter(
                f"{to_datetime!r} is no time: write 2026-11-21T13:05:12Z.",
                param_hint="--to-datetime",
            ) from None
    if by_duration is not None:
        # The broker searches record timestamps, so the duration becomes a point in time here.
        targets.append(max(round(time.time() * 1000) - by_duration, 0))
    if len(targets) != 1:
        raise click.UsageError(
            "Say where to, once: --to-earliest, --to-latest, --to-current, --to-offset,"
            " --shift-by, --to-datetime or --by-duration."
        )
    return targets[0]


def _described(group: Group, positions: Sequence[Position]) -> str:
    described = fields(
        (
            ("group", group.group_id),
            ("state", group.state),
            ("type", group.kind),
            ("protocol", group.protocol or ABSENT),
            ("assignor", group.assignor or ABSENT),
            ("epoch", known(group.epoch)),
            ("coordinator", str(group.coordinator)),
            ("members", count(len(group.members))),
            ("lag", count(sum(max(each.lag, 0) for each in positions))),
        )
    )
    tables = [_members(group)] if group.members else []
    if positions:
        tables.append(table(_POSITION, [_position_row(each) for each in positions]))
    return "\n\n".join([described, *tables])


def _members(group: Group) -> str:
    header = ("member id", "instance id", "client id", "host", "reads")
    rows = [
        (
            member.member_id,
            member.instance_id or ABSENT,
            member.client_id,
            # Brokers tell Java's form of an address, which begins with a slash.
            member.host.removeprefix("/"),
            ABSENT if member.partitions is None else _partitions(member.partitions),
        )
        for member in group.members
    ]
    return table(header, rows)


def _partitions(partitions: Iterable[TopicPartition]) -> str:
    """Return the names of few partitions, the count of many."""
    by_topic: dict[str, list[str]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(str(index))
    shown = [
        f"{topic}:{','.join(named)}"
        if len(named) <= _NAMED_MAX
        else f"{topic} ({len(named)} partitions)"
        for topic, named in list(by_topic.items())[:_NAMED_MAX]
    ]
    if len(by_topic) > _NAMED_MAX:
        shown.append(f"{len(by_topic) - _NAMED_MAX} more topics")
    return " ".join(shown) or "nothing"


def _position_row(each: Position) -> tuple[str, ...]:
    return (
        each.topic,
        str(each.partition),
        known(each.committed),
        known(each.end),
        known(each.lag),
        _reader(each.reader),
    )


def _reader(member: Member | None) -> str:
    # The instance id, where there is one: a static member keeps it when it restarts.
    return ABSENT if member is None else member.instance_id or member.member_id
