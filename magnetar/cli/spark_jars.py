"""`magnetar spark-jars`: the jars that Spark needs to read and write topics."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from magnetar.cli.options import EXIT_FAILURE


@click.command("spark-jars", short_help="Fetch the jars of Spark's Kafka connector.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--spark",
    "spark_version",
    metavar="VERSION",
    default="4.0.0",
    show_default=True,
    help="The connector's version; one of the same minor version as Spark's will do.",
)
def spark_jars(directory: Path, spark_version: str) -> None:
    """Fetch the jars of Spark's Kafka connector into DIR, and print them as spark.jars takes them.

    Maven fetches them, from where it is set up to look; jars that are there already are kept. Where
    Spark itself can download, --packages does the same.

    \b
    pyspark --jars "$(magnetar spark-jars ~/spark-jars)"
    """
    from magnetar.spark.jars import JarsUnavailable, fetch

    try:
        jars = fetch(directory.absolute(), spark_version)
    except (JarsUnavailable, OSError) as failure:
        print(f"magnetar: error: {failure}", file=sys.stderr)
        raise SystemExit(EXIT_FAILURE) from None
    print(",".join(map(str, jars)))
