"""`magnetar groups`: list, describe, lag, reset, delete.

Options, help and what is printed; what is asked is in `group_queries` and `group_resets`, imported
when a command is called.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import Commands
from magnetar.cli.options import (
    DURATION,
    EXIT_FAILURE,
    bootstrap,
    json_output,
    print_json,
    reports_errors,
    timeout,
)
from magnetar.cli.readable import ABSENT, count, fields, table

if TYPE_CHECKING:
    from magnetar.cli.group_resets import Target
    from magnetar.client.cluster import TopicPartition
    from magnetar.client.groups import Group, Member, Position

_NAMED_MAX = 4


@click.group(cls=Commands)
def groups() -> None:
    """Look at consumer groups, move their offsets, delete them."""


@groups.command("list")
@click.option(
    "--state", "states", metavar="STATE", multiple=True, help="Only in it: Stable. Repeatable."
)
@click.option(
    "--type", "kinds", metavar="TYPE", multiple=True, help="Only of it: classic. Repeatable."
)
@json_output
@bootstrap
@timeout
@reports_errors
def list_command(
    states: tuple[str, ...],
    kinds: tuple[str, ...],
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """List groups."""
    from magnetar.client import groups as queries
    from magnetar.client.cluster import Client

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        found = queries.list_groups(client, states=states, kinds=kinds)
    if as_json:
        print_json(group.to_json() for group in found)
        return
    if not found:
        print("no groups", file=sys.stderr)
        return
    rows = [
        (group.group_id, group.state, group.kind, group.protocol or ABSENT, str(group.coordinator))
        for group in found
    ]
    print(table(("group", "state", "type", "protocol", "coordinator"), rows))


@groups.command("describe", short_help="Show groups, their members, and what each reads.")
@click.argument("group_ids", metavar="GROUP...", nargs=-1, required=True)
@json_output
@bootstrap
@timeout
@reports_errors
def describe_command(
    group_ids: tuple[str, ...], as_json: bool, bootstrap_server: str, timeout_ms: int
) -> None:
    """Show groups: their state, their members, and what each of them reads."""
    from magnetar.client import groups as queries
    from magnetar.client.cluster import Client

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        found = queries.describe_groups(client, group_ids)
    if as_json:
        print_json(group.to_json() for group in found)
    else:
        print("\n\n".join(map(_described, found)))


@groups.command("lag", short_help="Show how far groups have read.")
@click.argument("group_ids", metavar="[GROUP...]", nargs=-1)
@click.option("--topic", help="Only in this topic.")
@json_output
@bootstrap
@timeout
@reports_errors
def lag_command(
    group_ids: tuple[str, ...],
    topic: str | None,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Show how far groups have read, all of them where none is named.

    LAG: the records between what is committed and the end of the partition, markers counted.
    """
    from magnetar.client import groups as queries
    from magnetar.client.cluster import Client

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        wanted = group_ids or [group.group_id for group in queries.list_groups(client)]
        found = [
            (
                group.group_id,
                [
                    each
                    for each in queries.positions(client, group)
                    if topic is None or each.topic == topic
                ],
            )
            for group in queries.describe_groups(client, wanted)
        ]
    if as_json:
        print_json(
            {"group": group_id, **each.to_json()} for group_id, every in found for each in every
        )
        return
    rows = [_position_row(group_id, each) for group_id, every in found for each in every]
    if not rows:
        print("nothing is committed and nothing is read", file=sys.stderr)
        return
    print(table(("group", "topic", "partition", "committed", "end", "lag", "member"), rows))


@groups.command("reset")
@click.argument("group_id", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:0,1]",
    multiple=True,
    help="A topic, or some of its partitions. Repeatable.",
)
@click.option("--all-topics", is_flag=True, help="Wherever the group has committed anything.")
@click.option("--to-earliest", is_flag=True, help="To the first record that is there.")
@click.option("--to-latest", is_flag=True, help="Behind the last record.")
@click.option("--to-current", is_flag=True, help="Where it is; where it is nowhere: latest.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option("--shift-by", type=int, metavar="N", help="N records on; back, if N is negative.")
@click.option(
    "--to-datetime", metavar="TIME", help="To the first record since: 2026-11-21T13:05:12Z."
)
@click.option("--by-duration", type=DURATION, help="To the first record since so long ago: 2h.")
@click.option("--execute", is_flag=True, help="Do it. Without it nothing is changed.")
@click.option("--dry-run", is_flag=True, help="Show what would be done: the default.")
@json_output
@bootstrap
@timeout
@reports_errors
def reset_command(
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
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Move the offsets of a group without members. Shows what it would do, unless --execute.

    Offsets outside a partition become its first or its end.

    \b
    magnetar groups reset billing --topic orders --to-datetime 2026-11-21T00:00Z
    magnetar groups reset billing --topic orders:0,2 --shift-by -100 --execute
    """
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
    from magnetar.cli import group_resets as resets
    from magnetar.client.cluster import Client

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        partitions: list[TopicPartition] | None = None
        if topics:
            partitions = resets.selected(client, topics)
        moves = resets.plan(client, group_id, partitions, target)
        if execute:
            resets.perform(client, group_id, moves)
    if as_json:
        print(json.dumps({"executed": execute, "offsets": [move.to_json() for move in moves]}))
        return
    if not moves:
        print(f"group {group_id} has committed nothing", file=sys.stderr)
        return
    rows = [
        (each.topic, str(each.partition), _known(each.committed), count(each.planned))
        for each in moves
    ]
    print(table(("topic", "partition", "committed", "new"), rows))
    if not execute:
        print("\nNothing was changed. --execute does it.", file=sys.stderr)


@groups.command("delete")
@click.argument("group_ids", metavar="GROUP...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask. Never asked without a terminal.")
@json_output
@bootstrap
@timeout
@reports_errors
def delete_command(
    group_ids: tuple[str, ...], yes: bool, as_json: bool, bootstrap_server: str, timeout_ms: int
) -> None:
    """Delete groups without members, with all they have committed."""
    from magnetar.client import groups as queries
    from magnetar.client.cluster import Client

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        if not yes and sys.stdin.isatty():
            names = ", ".join(group_ids)
            click.confirm(f"Delete {names} with all offsets?", abort=True, err=True)
        codes = queries.delete_groups(client, group_ids)
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
    """Return the one place that is named. Raises UsageError for none, and for several."""
    from magnetar.cli import group_resets as resets

    targets: list[Target] = [getattr(resets, name) for name, given in flags.items() if given]
    if to_offset is not None:
        targets.append(resets.to_offset(to_offset))
    if shift_by is not None:
        targets.append(resets.shifted(shift_by))
    if to_datetime is not None:
        try:
            targets.append(resets.parse_moment(to_datetime))
        except ValueError:
            raise click.BadParameter(
                f"{to_datetime!r} is no time: write 2026-11-21T13:05:12Z.",
                param_hint="--to-datetime",
            ) from None
    if by_duration is not None:
        targets.append(round(time.time() * 1000) - by_duration)
    if len(targets) != 1:
        raise click.UsageError(
            "Say where to, once: --to-earliest, --to-latest, --to-current, --to-offset,"
            " --shift-by, --to-datetime or --by-duration."
        )
    return targets[0]


def _described(group: Group) -> str:
    described = fields(
        (
            ("group", group.group_id),
            ("state", group.state),
            ("type", group.kind),
            ("protocol", group.protocol or ABSENT),
            ("assignor", group.assignor or ABSENT),
            ("epoch", _known(group.epoch)),
            ("coordinator", str(group.coordinator)),
            ("members", count(len(group.members))),
        )
    )
    if not group.members:
        return described
    header = ("member id", "instance id", "client id", "host", "reads")
    rows = [
        (
            member.member_id,
            member.instance_id or ABSENT,
            member.client_id,
            member.host.removeprefix("/"),
            ABSENT if member.partitions is None else _partitions(member.partitions),
        )
        for member in group.members
    ]
    return f"{described}\n\n{table(header, rows)}"


def _partitions(partitions: Iterable[TopicPartition]) -> str:
    """Name few partitions, count many."""
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


def _position_row(group_id: str, each: Position) -> tuple[str, ...]:
    return (
        group_id,
        each.topic,
        str(each.partition),
        _known(each.committed),
        _known(each.end),
        _known(each.lag),
        _reader(each.reader),
    )


def _reader(member: Member | None) -> str:
    return ABSENT if member is None else member.instance_id or member.member_id


def _known(value: int) -> str:
    return ABSENT if value < 0 else count(value)
