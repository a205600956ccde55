"""`magnetar import`: take over the topics of a stopped Apache Kafka."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import fail, json_output, plain, print_json
from magnetar.cli.progress import progress_bar
from magnetar.cli.tables import table
from magnetar.client.readable import ABSENT, size

if TYPE_CHECKING:
    from magnetar.importing.plan import PlannedTopic
    from magnetar.importing.run import Outcome


def _parse_configs(
    context: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str, str], ...]:
    found = []
    for text in values:
        topic, colon, setting = text.partition(":")
        name, equals, value = setting.partition("=")
        if not (colon and equals and topic and name):
            raise click.BadParameter(
                f"{text!r} is not TOPIC:NAME=VALUE, as orders:retention.ms=60000.", context, param
            )
        found.append((topic, name, value))
    return tuple(found)


@click.command("import", short_help="Take over the topics of a stopped Apache Kafka.")
@click.argument(
    "sources",
    metavar="DIRECTORY...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The data directory of a stopped magnetar; created if it is missing.",
)
@click.option(
    "--only", metavar="TOPIC", multiple=True, help="Only these topics; * and ? match. Repeatable."
)
@click.option(
    "--except", "except_", metavar="TOPIC", multiple=True, help="Not these topics. Repeatable."
)
@click.option(
    "--config",
    "configs",
    metavar="TOPIC:NAME=VALUE",
    multiple=True,
    callback=_parse_configs,
    help="A setting that replaces the topic's own. Repeatable.",
)
@click.option("--link", is_flag=True, help="Link closed segments instead of copying them.")
@click.option(
    "--abort-open",
    is_flag=True,
    help="Abort open transactions whose coordinator is not imported.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, import nothing.")
@json_output
def import_command(
    sources: tuple[Path, ...],
    data_dir: Path,
    only: tuple[str, ...],
    except_: tuple[str, ...],
    configs: tuple[tuple[str, str, str], ...],
    link: bool,
    abort_open: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import the topics of a stopped Apache Kafka 4, with its transactions and groups.

    Each DIRECTORY is one of Kafka's log.dirs; give all of them. One of them holds the metadata log,
    with names, ids and settings of topics. Offsets of records and of groups stay the same, so
    clients go on where they were. Producers can end their open transactions, or these time out.
    Nothing in the directories is changed.

    \b
    magnetar import /var/lib/kafka/data --data-dir data
    magnetar serve --data-dir data

    It imports everything or nothing. After an interruption, give the same command again.
    """
    from magnetar.importing.plan import Choice
    from magnetar.importing.run import import_directories
    from magnetar.importing.source import ImportRefused
    from magnetar.storage.database import CatalogFailure

    choice = Choice(only, except_, abort_open, configs)
    try:
        outcome = import_directories(
            sources, data_dir, choice, link=link, dry_run=dry_run, progress=progress_bar
        )
    except (ImportRefused, CatalogFailure) as refusal:
        fail(str(refusal))
    # A full disk or one that fails: the copies that are whole stay, and the next call goes on with
    # them.
    except OSError as failure:
        fail(f"{plain(failure)}. Nothing is lost: give the same command again.")
    for warning in outcome.plan.warnings:
        print(f"magnetar: warning: {warning}", file=sys.stderr)
    if as_json:
        print_json([_to_json(outcome, dry_run)])
    else:
        _print(outcome, data_dir, dry_run)


def _print(outcome: Outcome, data_dir: Path, dry_run: bool) -> None:
    plan = outcome.plan
    if outcome.finished_earlier:
        print("an interrupted import was completed")
    for name in plan.already_there:
        print(f"{name}: imported before")
    if plan.topics:
        rows = [
            (topic.row.name, str(topic.row.partition_count), _own(topic)) for topic in plan.topics
        ]
        print(table(("topic", "partitions", "own settings"), rows))
    done = "would be imported" if dry_run else "imported"
    topics = "1 topic" if len(plan.topics) == 1 else f"{len(plan.topics)} topics"
    print(f"{topics}, {size(outcome.size_bytes)} {done}", end="")
    print("" if dry_run else f"; next: magnetar serve --data-dir {data_dir}")


def _own(topic: PlannedTopic) -> str:
    return (
        ", ".join(f"{name}={value}" for name, value in sorted(topic.row.configs.items())) or ABSENT
    )


def _to_json(outcome: Outcome, dry_run: bool) -> dict[str, object]:
    plan = outcome.plan
    return {
        "dry_run": dry_run,
        "cluster_id": plan.cluster_id,
        "clean": plan.is_clean,
        "next_producer_id": plan.next_producer_id,
        "size_bytes": outcome.size_bytes,
        "already_there": plan.already_there,
        "warnings": plan.warnings,
        "topics": [
            {
                "topic": topic.row.name,
                "topic_id": str(topic.row.id),
                "partitions": topic.row.partition_count,
                "internal": topic.row.is_internal,
                "configs": topic.row.configs,
            }
            for topic in plan.topics
        ],
    }
