"""`magnetar cluster import` and `export`: from one machine to a cluster, and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.cluster_storage import reports_catalog, storage
from magnetar.cli.commands import fail, json_output, plain, print_json
from magnetar.cli.progress import progress_bar
from magnetar.client.readable import size

if TYPE_CHECKING:
    from magnetar.importing.into_cluster import Copied

_directory = click.argument(
    "directory", metavar="DIRECTORY", type=click.Path(path_type=Path, file_okay=False)
)


def _reports_refusals(command: Callable[..., None]) -> Callable[..., None]:
    # Inside, so that this does not advise to try again after a failure of the catalog.
    reported = reports_catalog(command)

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        from magnetar.importing.source import ImportRefused

        try:
            reported(**arguments)
        except ImportRefused as refusal:
            fail(str(refusal))
        except OSError as failure:
            fail(f"{plain(failure)}. Nothing is lost: give the same command again.")

    return run


@click.command("import", short_help="Take over a stopped broker's data directory.")
@_directory
@storage
@click.option(
    "--node-id",
    metavar="N",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="The node that leads all partitions at first.",
)
@json_output
@_reports_refusals
def import_(directory: Path, url: str, node_id: int, as_json: bool) -> None:
    """Copy the data directory of a stopped `magnetar serve`, of one node or of several, into a
    cluster that is empty: topics with their records, groups with their offsets, transactions,
    producer ids, users, ACLs, quotas and settings. Nothing in DIRECTORY is changed.

    \b
    magnetar cluster import data --storage postgresql://...
    magnetar serve --storage postgresql://... --node-id 1

    It imports everything or nothing. After an interruption, give the same command again.
    """
    from magnetar.importing.into_cluster import import_into_cluster

    copied = import_into_cluster(directory, url, node_id, progress_bar)
    _tell(copied, "imported", f"magnetar serve --storage URL --node-id {node_id}", as_json)


@click.command("export", short_help="Write a stopped cluster into a data directory.")
@_directory
@storage
@json_output
@_reports_refusals
def export(directory: Path, url: str, as_json: bool) -> None:
    """Copy a cluster whose nodes are all stopped into a new data directory of a single broker, with
    everything that `import` copies. Batches in a bucket are read from there. The cluster is not
    changed.

    \b
    magnetar cluster export data --storage postgresql://...
    magnetar serve --data-dir data

    DIRECTORY appears once it is whole. After an interruption, give the same command again.
    """
    from magnetar.cli.clustered import open_bucket
    from magnetar.importing.out_of_cluster import export_from_cluster

    copied = export_from_cluster(url, directory, open_bucket, progress_bar)
    _tell(copied, "exported", f"magnetar serve --data-dir {directory}", as_json)


def _tell(copied: Copied, done: str, then: str, as_json: bool) -> None:
    if as_json:
        return print_json([copied._asdict()])
    print(
        f"{copied.topics} topics, {copied.partitions} partitions with data,"
        f" {size(copied.size_bytes)} {done}; next: {then}"
    )
