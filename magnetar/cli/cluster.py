"""`magnetar cluster` and `magnetar log-dirs`: the brokers, and the disks that they fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from magnetar.cli.cluster_copy import export, import_
from magnetar.cli.cluster_storage import doctor, init, repair, status
from magnetar.cli.commands import Connect, asks_brokers, complete_topics, json_output, print_json
from magnetar.cli.tables import fields, table
from magnetar.client.readable import ABSENT, size

if TYPE_CHECKING:
    from magnetar.client.log_dirs import LogDir


@click.group("cluster", short_help="Show the brokers of the cluster.", invoke_without_command=True)
@json_output
@asks_brokers
def cluster(connect: Connect, as_json: bool) -> None:
    """Show the cluster's id and its brokers. The controller is marked.

    The commands below are for clusters of `serve --storage`. They work on the cluster's database.
    """
    if click.get_current_context().invoked_subcommand is None:
        _show(connect, as_json)


for _command in (init, status, doctor, repair, import_, export):
    cluster.add_command(_command)


def _show(connect: Connect, as_json: bool) -> None:
    from magnetar.client.nodes import describe_cluster

    with connect() as client:
        found = describe_cluster(client)
    if as_json:
        return print_json(
            {
                **node.to_json(),
                "cluster_id": found.cluster_id,
                "controller": node.node_id == found.controller_id,
            }
            for node in found.nodes
        )
    rows = [
        (
            str(node.node_id),
            f"{node.host}:{node.port}",
            node.rack or ABSENT,
            "yes" if node.node_id == found.controller_id else "",
        )
        for node in found.nodes
    ]
    print(fields([("cluster id", found.cluster_id)]))
    print(f"\n{table(('node', 'address', 'rack', 'controller'), rows)}")


@click.command("log-dirs", short_help="Show the disks of brokers, and the sizes of topics.")
@click.option(
    "--topic",
    "-t",
    "topics",
    metavar="TOPIC",
    multiple=True,
    shell_complete=complete_topics,
    help="Show the partitions of this topic. Repeatable.",
)
@json_output
@asks_brokers
def log_dirs(connect: Connect, topics: tuple[str, ...], as_json: bool) -> None:
    """Show the brokers' log directories: the size and the free space of their disks, and the size
    of all logs in them. With --topic, show the size of each partition.
    """
    from magnetar.client.log_dirs import describe_log_dirs

    with connect() as client:
        found = describe_log_dirs(client, client.topics(topics) if topics else None)
    if as_json:
        return print_json(directory.to_json() for directory in found)
    if topics:
        rows = [
            (topic, str(index), str(directory.node_id), directory.path, size(size_bytes))
            for directory in found
            for (topic, index), size_bytes in sorted(directory.sizes.items())
        ]
        print(table(("topic", "partition", "node", "directory", "size"), rows))
    else:
        header = ("node", "directory", "partitions", "size", "free", "disk")
        print(table(header, _rows(found)))


def _rows(found: Sequence[LogDir]) -> list[tuple[str, ...]]:
    return [
        (
            str(directory.node_id),
            directory.path,
            str(len(directory.sizes)),
            size(directory.size_bytes),
            _size_or_absent(directory.usable_bytes),
            _size_or_absent(directory.total_bytes),
        )
        for directory in found
    ]


def _size_or_absent(size_bytes: int) -> str:
    # -1: the broker is older than KIP-827, or keeps everything in memory.
    return ABSENT if size_bytes < 0 else size(size_bytes)
