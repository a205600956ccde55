"""`magnetar topics`: create, list, describe, alter, delete.

Options, help and what is printed; what is asked is in `topic_queries`, imported when a command is
called.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import Commands
from magnetar.cli.options import (
    bootstrap,
    json_output,
    parse_settings,
    print_json,
    reports_errors,
    timeout,
)
from magnetar.cli.readable import ABSENT, count, fields, size, table

if TYPE_CHECKING:
    from magnetar.client.topics import Topic

_DEFAULT = -1


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
    help="A setting of the topic's own, as retention.ms=60000. Repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed where the topic is there already.")
@click.option("--dry-run", is_flag=True, help="Have the broker check everything, create nothing.")
@json_output
@bootstrap
@timeout
@reports_errors
def create_command(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Create topics.

    \b
    magnetar topics create orders --partitions 4 --config retention.ms=86400000
    """
    settings = parse_settings(configs, "--config")
    from magnetar.client import topics as queries
    from magnetar.client.cluster import Client

    outcomes = []
    with Client(bootstrap_server, timeout_ms / 1000) as client:
        for name in names:
            created = queries.create_topic(
                client,
                name,
                partitions=partitions or _DEFAULT,
                replication_factor=replication_factor or _DEFAULT,
                configs=settings,
                if_not_exists=if_not_exists,
                validate_only=dry_run,
                timeout_ms=timeout_ms,
            )
            outcomes.append({"topic": name, "created": created and not dry_run})
            if not as_json:
                done = "could be created" if dry_run else "created"
                print(f"{name}: {done if created else 'exists already'}")
    if as_json:
        print_json(outcomes)


@topics.command("list")
@click.option("--internal", is_flag=True, help="The coordinators' own topics too.")
@json_output
@bootstrap
@timeout
@reports_errors
def list_command(internal: bool, as_json: bool, bootstrap_server: str, timeout_ms: int) -> None:
    """List topics, with how many partitions and replicas they have."""
    from magnetar.client import topics as queries
    from magnetar.client.cluster import Client

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        found = queries.list_topics(client)
    hidden = 0 if internal else sum(topic.is_internal for topic in found)
    shown = [topic for topic in found if internal or not topic.is_internal]
    if as_json:
        print_json(topic.to_json(detailed=False) for topic in shown)
        return
    if not shown:
        more = " but internal ones (--internal shows them)" if hidden else ""
        print(f"no topics{more}", file=sys.stderr)
        return
    rows = [
        (topic.name, str(len(topic.partitions)), str(topic.replication_factor), topic.topic_id)
        for topic in shown
    ]
    print(table(("topic", "partitions", "replicas", "topic id"), rows))


@topics.command("describe", short_help="Show settings, offsets and sizes of topics.")
@click.argument("names", metavar="[TOPIC...]", nargs=-1)
@json_output
@bootstrap
@timeout
@reports_errors
def describe_command(
    names: tuple[str, ...], as_json: bool, bootstrap_server: str, timeout_ms: int
) -> None:
    """Show topics, all but internal ones where none is named: settings, offsets, sizes.

    START is the first offset that is there. STABLE is the end of what read_committed readers see,
    HIGH WATERMARK the end of what others see; a transaction that is open lies between.
    """
    from magnetar.client import topics as queries
    from magnetar.client.cluster import Client

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        wanted = names or [
            topic.name for topic in queries.list_topics(client) if not topic.is_internal
        ]
        found = queries.describe_topics(client, wanted) if wanted else []
    if as_json:
        print_json(topic.to_json(detailed=True) for topic in found)
    elif found:
        print("\n\n".join(map(_described, found)))
    else:
        print("no topics", file=sys.stderr)


@topics.command("alter")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--partitions", "-p", metavar="N", type=click.IntRange(min=1), help="More than there are now."
)
@click.option(
    "--config", "-c", "configs", metavar="NAME=VALUE", multiple=True, help="Set it. Repeatable."
)
@click.option(
    "--unset", "unset", metavar="NAME", multiple=True, help="Back to the broker's. Repeatable."
)
@json_output
@bootstrap
@timeout
@reports_errors
def alter_command(
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Give a topic more partitions, or other settings.

    Partitions can only be added. Records stay where they are, so a key's later records may go to
    another partition than its earlier ones.
    """
    if partitions is None and not configs and not unset:
        raise click.UsageError("Say what to change: --partitions, --config or --unset.")
    settings = parse_settings(configs, "--config")
    from magnetar.client import topics as queries
    from magnetar.client.cluster import Client
    from magnetar.client.configs import Resource, change_configs
    from magnetar.config.resources import ResourceType

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        if settings or unset:
            change_configs(client, Resource(ResourceType.TOPIC, name), settings, unset)
        if partitions is not None:
            queries.grow_topic(client, name, partitions, timeout_ms)
    if as_json:
        changed = {"topic": name, "partitions": partitions, "set": settings, "unset": list(unset)}
        print(json.dumps(changed))
        return
    done = [f"{each}={value}" for each, value in settings.items()]
    done += [f"{each} unset" for each in unset]
    done += [] if partitions is None else [f"{partitions} partitions"]
    print(f"{name}: {', '.join(done)}")


@topics.command("delete")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="Succeed where a topic is not there.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask. Never asked without a terminal.")
@json_output
@bootstrap
@timeout
@reports_errors
def delete_command(
    names: tuple[str, ...],
    if_exists: bool,
    yes: bool,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Delete topics with all their records."""
    from magnetar.client import topics as queries
    from magnetar.client.cluster import Client

    with Client(bootstrap_server, timeout_ms / 1000) as client:
        if not yes and sys.stdin.isatty():
            click.confirm(f"Delete {', '.join(names)} with all records?", abort=True, err=True)
        deleted = queries.delete_topics(
            client, list(names), if_exists=if_exists, timeout_ms=timeout_ms
        )
    if as_json:
        print_json({"topic": name, "deleted": name in deleted} for name in names)
        return
    for name in names:
        print(f"{name}: {'deleted' if name in deleted else 'not there'}")


def _described(topic: Topic) -> str:
    own = ", ".join(f"{name}={value}" for name, value in sorted(topic.configs.items()))
    described = fields(
        (
            ("topic", topic.name),
            ("topic id", topic.topic_id),
            ("replicas", str(topic.replication_factor)),
            ("own settings", own or ABSENT),
            ("size", _total_size(topic)),
        )
    )
    header = (
        "partition",
        "leader",
        "in sync",
        "start",
        "stable",
        "high watermark",
        "size",
    )
    rows = [
        (
            str(each.index),
            _known(each.leader),
            f"{len(each.in_sync)} of {len(each.replicas)}",
            _known(each.log_start_offset),
            _known(each.stable_offset),
            _known(each.high_watermark),
            ABSENT if each.size_bytes < 0 else size(each.size_bytes),
        )
        for each in topic.partitions
    ]
    return f"{described}\n\n{table(header, rows)}"


def _known(value: int) -> str:
    return ABSENT if value < 0 else count(value)


def _total_size(topic: Topic) -> str:
    return size(sum(max(each.size_bytes, 0) for each in topic.partitions))
