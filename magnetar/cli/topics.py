"""`magnetar topics`: create, list, describe, alter, delete.

This module has the options, the help and the output. `magnetar.client.topics` asks the brokers. A
command imports that module only when it runs, so that `--help` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from magnetar.cli.commands import (
    Commands,
    Connect,
    asks_brokers,
    complete_topics,
    confirm,
    explained,
    fail,
    json_output,
    never_asks,
    parse_settings,
    print_json,
    print_table,
)
from magnetar.cli.tables import fields, table
from magnetar.client.readable import ABSENT, known, size

if TYPE_CHECKING:
    from magnetar.client import Refused
    from magnetar.client.topics import Topic

#: Sent to let the broker choose by its own defaults (KIP-464).
_BROKERS_DEFAULT = -1


@click.group(cls=Commands)
def topics() -> None:
    """Create topics, look at them, change and delete them."""


@topics.command("create")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partitions",
    "-p",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many partitions.  [default: the broker's num.partitions]",
)
@click.option(
    "--replication-factor",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many replicas.  [default: the broker's default.replication.factor]",
)
@click.option(
    "--config",
    "-c",
    "configs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of the topic, such as retention.ms=60000. Repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already.")
@click.option("--dry-run", is_flag=True, help="Let the broker check everything, create nothing.")
@json_output
@asks_brokers
def create_command(
    connect: Connect,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create topics.

    \b
    magnetar topics create orders --partitions 4 --config retention.ms=86400000
    """
    settings = parse_settings(configs, "--config")
    from magnetar.client import Refused
    from magnetar.client.topics import create_topic

    outcomes: list[dict[str, Any]] = []
    refusals = []
    with connect() as client:
        # One request per topic: a created topic is printed at once, and an error names its topic.
        for name in names:
            try:
                created = create_topic(
                    client,
                    name,
                    partitions=partitions or _BROKERS_DEFAULT,
                    replication_factor=replication_factor or _BROKERS_DEFAULT,
                    configs=settings,
                    if_not_exists=if_not_exists,
                    validate_only=dry_run,
                )
            except Refused as refusal:
                refusals.append(refusal)
                outcomes.append({"topic": name, "created": False, "error": refusal.code.name})
                continue
            outcomes.append({"topic": name, "created": created and not dry_run, "error": None})
            if not as_json:
                done = "could be created" if dry_run else "created"
                print(f"{name}: {done if created else 'exists already'}")
    if as_json:
        print_json(outcomes)
    if refusals:
        _tell_refusals([each["topic"] for each in outcomes if each["created"]], refusals)


@topics.command("list")
@click.option("--internal", is_flag=True, help="List the coordinators' own topics too.")
@json_output
@asks_brokers
def list_command(connect: Connect, internal: bool, as_json: bool) -> None:
    """List topics, with their numbers of partitions and replicas."""
    from magnetar.client.topics import list_topics

    with connect() as client:
        found = list_topics(client)
    # The broker's mark decides, not the name: users may begin a name with two underscores.
    shown = [topic for topic in found if internal or not topic.is_internal]
    if as_json:
        return print_json(topic.to_json(detailed=False) for topic in shown)
    rows = [
        (topic.name, str(len(topic.partitions)), str(topic.replication_factor), topic.topic_id)
        for topic in shown
    ]
    but_internal = " but internal ones (--internal shows them)" if found else ""
    print_table(("topic", "partitions", "replicas", "topic id"), rows, f"no topics{but_internal}")


@topics.command("describe", short_help="Show settings, offsets and sizes of topics.")
@click.argument("names", metavar="[TOPIC...]", nargs=-1, shell_complete=complete_topics)
@json_output
@asks_brokers
def describe_command(connect: Connect, names: tuple[str, ...], as_json: bool) -> None:
    """Show settings, offsets and sizes of topics.

    Without a TOPIC, all topics but internal ones are shown. A TOPIC that begins with ^ is a regular
    expression: all topics that match it are shown.

    START is the first offset of a partition. Readers with read_committed read up to STABLE, other
    readers up to HIGH WATERMARK. Open transactions lie between the two.
    """
    from magnetar.client.topics import describe_topics, list_topics, matching

    with connect() as client:
        wanted = matching(client, names)
        if not names:
            wanted = [topic.name for topic in list_topics(client) if not topic.is_internal]
        found = describe_topics(client, wanted) if wanted else []
    if as_json:
        print_json(topic.to_json(detailed=True) for topic in found)
    elif found:
        print("\n\n".join(map(_described, found)))
    else:
        print("no topics", file=sys.stderr)


@topics.command("alter")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option(
    "--partitions", "-p", metavar="N", type=click.IntRange(min=1), help="More than there are now."
)
@click.option(
    "--config",
    "-c",
    "configs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting to change, such as retention.ms=60000. Repeatable.",
)
@click.option(
    "--unset",
    "unset",
    metavar="NAME",
    multiple=True,
    help="Return a setting to the broker's value. Repeatable.",
)
@json_output
@asks_brokers
def alter_command(
    connect: Connect,
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    as_json: bool,
) -> None:
    """Give a topic more partitions, or other settings.

    Partitions can only be added. Records stay where they are, so a key's later records may go to
    another partition than its earlier ones.
    """
    if partitions is None and not configs and not unset:
        raise click.UsageError("Say what to change: --partitions, --config or --unset.")
    settings = parse_settings(configs, "--config")
    from magnetar.client.configs import Resource, change_configs, check_names
    from magnetar.client.topics import add_partitions
    from wire.resource_type import ResourceType

    with connect() as client:
        # Settings first: partitions cannot be removed again, so a refused setting must leave the
        # topic as it was.
        if settings or unset:
            topic = Resource(ResourceType.TOPIC, name)
            check_names(client, topic, unset)
            change_configs(client, topic, settings, unset)
        if partitions is not None:
            add_partitions(client, name, partitions)
    if as_json:
        changed = {"topic": name, "partitions": partitions, "set": settings, "unset": list(unset)}
        return print_json([changed])
    done = [f"{each}={value}" for each, value in settings.items()]
    done += [f"{each} unset" for each in unset]
    done += [] if partitions is None else [f"{partitions} partitions"]
    print(f"{name}: {', '.join(done)}")


@topics.command("delete")
@click.argument(
    "names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics
)
@click.option("--if-exists", is_flag=True, help="Succeed if a topic does not exist.")
@never_asks
@json_output
@asks_brokers
def delete_command(
    connect: Connect, names: tuple[str, ...], if_exists: bool, yes: bool, as_json: bool
) -> None:
    """Delete topics with all their records."""
    from magnetar.client.topics import delete_topics

    with connect() as client:
        confirm(f"Delete {', '.join(names)} with all records?", yes=yes)
        deleted = delete_topics(client, names, if_exists=if_exists)
    if as_json:
        return print_json({"topic": name, "deleted": name in deleted} for name in names)
    for name in names:
        print(f"{name}: {'deleted' if name in deleted else 'not there'}")


def _tell_refusals(created: Sequence[str], refusals: Sequence[Refused]) -> NoReturn:
    """End the command with an error that names the created topics and why others are not."""
    *earlier, last = refusals
    # The advice of one is enough: topics of one command are mostly refused for one reason.
    refused = "; ".join([*map(str, earlier), explained(last)])
    fail(f"created {', '.join(created)}, but not {refused}" if created else refused, last.code.name)


def _described(topic: Topic) -> str:
    own = ", ".join(f"{name}={value}" for name, value in sorted(topic.configs.items()))
    described = fields(
        (
            ("topic", topic.name),
            ("topic id", topic.topic_id),
            ("replicas", str(topic.replication_factor)),
            ("own settings", own or ABSENT),
            # -1 stands for a partition whose broker gave no size.
            ("size", size(sum(max(each.size_bytes, 0) for each in topic.partitions))),
        )
    )
    header = ("partition", "leader", "in sync", "start", "stable", "high watermark", "size")
    rows = [
        (
            str(each.partition),
            known(each.leader),
            f"{len(each.in_sync_replicas)} of {len(each.replicas)}",
            known(each.log_start_offset),
            known(each.last_stable_offset),
            known(each.high_watermark),
            ABSENT if each.size_bytes < 0 else size(each.size_bytes),
        )
        for each in topic.partitions
    ]
    return f"{described}\n\n{table(header, rows)}"
