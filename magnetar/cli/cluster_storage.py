"""`magnetar cluster init`, `status`, `doctor` and `repair`: the database that keeps a cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.commands import (
    EXIT_FAILURE,
    fail,
    json_output,
    print_json,
    print_table,
    reports_errors,
)
from magnetar.cli.progress import progress_bar
from magnetar.client.readable import size
from wire.address import address_text

if TYPE_CHECKING:
    from magnetar.storage.catalog import Catalog
    from magnetar.storage.catalog_rows import NodeRow


def _checked(context: click.Context, parameter: click.Parameter, url: str) -> str:
    """Return the URL if it can be one of a database. Raises BadParameter."""
    try:
        from magnetar.storage.postgres_database import PostgresDatabase

        # An empty URL, of a variable that is not set, would mean libpq's default database.
        if url:
            PostgresDatabase(url)
            return url
    except ImportError:
        return url  # The command says what is missing.
    except OSError:
        pass
    raise click.BadParameter(
        "this is not a database's URL: write postgresql://USER@HOST:PORT/DATABASE"
    )


storage = click.option(
    "--storage",
    "url",
    metavar="URL",
    required=True,
    callback=_checked,
    help="The database, as `serve --storage` has it: postgresql://USER@HOST:PORT/DATABASE.",
)


def reports_catalog(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what a catalog raises into one line on standard error, and exit code 1."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        from magnetar.storage.database import CatalogFailure
        from wire.errors import KafkaError

        try:
            command(**arguments)
        except ImportError as missing:
            fail(f"{missing.name} is missing: pip install 'magnetar[cluster]'.")
        except CatalogFailure as failure:
            fail(str(failure))
        except KafkaError as away:
            fail(away.detail if away.detail.endswith("?") else f"{away.detail}.")

    return reports_errors(run)


def _open(url: str, *, makes_tables: bool = False) -> Catalog:
    """Return the catalog of a cluster. Without `makes_tables` its tables must exist."""
    from magnetar.storage.catalog import Catalog
    from magnetar.storage.postgres_database import PostgresDatabase, Tables

    database = PostgresDatabase(url, tables=Tables.MADE if makes_tables else Tables.LEFT)
    return Catalog(None, is_shared=True, database=database)


@click.command("init", short_help="Make the tables of a cluster.")
@storage
@reports_catalog
def init(url: str) -> None:
    """Create the tables of a cluster in a database, in the schema magnetar, or bring them up to
    date.

    The first node that starts does this too, unless its role may not create tables. A node does not
    bring tables up to date while nodes of the older version live. This command does. Those nodes
    run on, but cannot start again.
    """
    with closing(_open(url, makes_tables=True)) as catalog:
        print(f"cluster {catalog.cluster_id()} is ready")


@click.command("status", short_help="Show the nodes of a cluster, from its database.")
@storage
@json_output
@reports_catalog
def status(url: str, as_json: bool) -> None:
    """Show the nodes of a cluster from its database, even if none of them runs: which live, how
    many partitions each leads, and its addresses for clients and for other nodes.
    """
    from magnetar.storage.history import read_history

    with closing(_open(url)) as catalog:
        cluster_id, leading = catalog.cluster_id(), catalog.nodes.led_counts()
        rows = [row for row in catalog.nodes.members() if row.incarnation >= 0]
        loss = read_history(catalog.database).loss
    if as_json:
        of_all = {"cluster_id": cluster_id, "halted": loss or None}
        return print_json({**of_all, **_to_json(row, leading.get(row.node_id, 0))} for row in rows)
    print(f"CLUSTER ID  {cluster_id}\n")
    if loss:
        print(f"HALTED      {loss}\n")
    header = ("node", "state", "start", "partitions", "clients", "peers", "rack", "version")
    print_table(
        (*header, "place"),
        [_row(row, leading.get(row.node_id, 0)) for row in rows],
        "no node has started yet",
    )


@click.command("doctor", short_help="Look for what breaks a cluster's promises.")
@storage
@click.option(
    "--read-objects",
    is_flag=True,
    help="Read all objects of the bucket, one after the other, and check each batch's CRC.",
)
@json_output
@reports_catalog
def doctor(url: str, read_objects: bool, as_json: bool) -> None:
    """Look for faults that break the promises of a cluster, and say how to mend each.

    Checks the setup, the replication and the connections of its database, the clocks, the nodes,
    and whether the bucket has all objects in their sizes. With --read-objects it also finds objects
    whose bytes have changed. The exit code is 1 after an error.
    """
    from magnetar.storage.cluster_checks import Verdict, check

    found = []
    for finding in check(url, progress_bar, reads_objects=read_objects):
        found.append(finding)
        if not as_json:
            print(f"{finding.verdict.value:<8}{finding.what}")
            if finding.mend:
                print(f"{'':<8}{finding.mend}")
    if as_json:
        print_json(
            {"verdict": each.verdict.value, "what": each.what, "mend": each.mend} for each in found
        )
    if any(finding.verdict is Verdict.BAD for finding in found):
        raise SystemExit(EXIT_FAILURE)


@click.command("repair", short_help="Let a cluster continue after it has lost data for good.")
@storage
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Continue without what the database has lost. It cannot be brought back afterwards.",
)
@click.option(
    "--accept-lost-objects",
    is_flag=True,
    help="Give up the records of which the bucket has no object any more, once and for all.",
)
@reports_catalog
def repair(url: str, accept_loss: bool, accept_lost_objects: bool) -> None:
    """Show which acknowledged data a cluster has lost, and let it continue without that data.
    Without an option nothing is changed.

    A database that has failed over to a standby that was behind has lost commits: the cluster
    halts, its nodes end, and none starts. If you can bring back the server that has these commits,
    do that. With --accept-loss the nodes serve again without them.

    A bucket may have lost objects, to another program or a rule of the bucket. Their records cannot
    be read. If an object was the newest one of a partition, no node can open that partition. If you
    can bring the objects back, do that. With --accept-lost-objects consumers go on behind these
    records, and the partitions are served again, within seconds. Nodes may run meanwhile.
    """
    from magnetar.storage.history import accept_loss as accept
    from magnetar.storage.history import read_history

    with closing(_open(url)) as catalog:
        loss = read_history(catalog.database).loss
        if loss:
            print(f"lost: {loss}")
            if not accept_loss:
                fail("Nothing was changed. With --accept-loss the cluster goes on without it.")
            accept(catalog.database)
            print("accepted: nodes serve again, within seconds where their supervisors still run")
        if accept_lost_objects or not loss:
            _repair_objects(catalog, url, accept=accept_lost_objects)


def _repair_objects(catalog: Catalog, url: str, *, accept: bool) -> None:
    """Show which records the bucket has lost. With `accept`, give them up."""
    from magnetar.storage.cluster_objects import objects_prefix, objects_url

    bucket_url = objects_url(catalog)
    if not bucket_url:
        print("the cluster has not halted, and has no bucket: there is nothing to repair")
        return

    from magnetar.storage.lost_objects import find_lost, give_up, ranges

    comparison, lost = find_lost(catalog, url, bucket_url, progress_bar)
    if not lost:
        print(
            f"the cluster has not halted, and its bucket has all {comparison.named} objects that"
            " rows name: there is nothing to repair"
        )
        return
    print(
        f"{len(comparison.missing)} of the {comparison.named} objects that rows name are missing in"
        f" {bucket_url} or too short. Records at these offsets are lost:\n"
    )
    rows = [
        (each.partition, str(each.first_offset), str(each.last_offset), size(each.size_bytes))
        for each in sorted(ranges(catalog, lost))
    ]
    print_table(("partition", "first", "last", "size"), rows, "")
    if len(comparison.missing) == comparison.named and not comparison.unnamed:
        fail(
            "Nothing was changed. The bucket has none of this cluster's objects: is it the right"
            " one? See AWS_ENDPOINT_URL, the account and the region. If it is, and has lost all of"
            f" them, put any object below {objects_prefix(catalog)}/ there, and ask again."
        )
    if not accept:
        fail(
            "Nothing was changed. Bring the objects back, from a version or a copy of the bucket."
            " If they are gone for good, --accept-lost-objects gives these records up."
        )
    given_up = give_up(catalog.database, lost, progress_bar)
    print(f"\naccepted: {given_up} rows name these objects no more")


def _row(row: NodeRow, partitions: int) -> tuple[str, ...]:
    from magnetar.storage.catalog_rows import PEERS, PEERS_IN_TLS

    endpoints = dict(row.presence.endpoints)
    peers = endpoints.pop(PEERS, None)
    mark = " (TLS)" if endpoints.pop(PEERS_IN_TLS, None) else ""
    return (
        str(row.node_id),
        "live" if row.is_live else "gone",
        str(row.incarnation),
        str(partitions),
        ", ".join(address_text(*one) for one in endpoints.values()),
        f"{address_text(*peers)}{mark}" if peers else "-",
        row.presence.rack or "-",
        row.presence.version,
        row.presence.owner,
    )


def _to_json(row: NodeRow, partitions: int) -> dict[str, Any]:
    return {
        "node_id": row.node_id,
        "live": row.is_live,
        "start": row.incarnation,
        "partitions": partitions,
        "endpoints": {name: address_text(*one) for name, one in row.presence.endpoints.items()},
        "rack": row.presence.rack or None,
        "version": row.presence.version,
        "place": row.presence.owner,
    }
