"""`magnetar produce`: records from standard input, or files, to a topic."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magnetar.cli.escapes import DelimiterType
from magnetar.cli.options import (
    DURATION,
    EXIT_INTERRUPTED,
    bootstrap,
    parse_settings,
    reports_errors,
    timeout,
)
from magnetar.cli.readable import count

if TYPE_CHECKING:
    from magnetar.cli.input_records import LineFormat
    from magnetar.client.producer import Producer

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_DELIMITER = DelimiterType()


@click.command("produce", short_help="Write lines of standard input to a topic.")
@click.argument("topic")
@click.argument(
    "files",
    metavar="[FILE...]",
    nargs=-1,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--partition", "-p", metavar="N", type=click.IntRange(min=0), help="Always to this partition."
)
@click.option("--key-delimiter", "-K", type=_DELIMITER, help="A line is KEY, this, VALUE.")
@click.option("--key", "-k", help="The key of records that have none of their own.")
@click.option(
    "--delimiter", "-D", type=_DELIMITER, default="\\n", show_default=True, help="Ends a record."
)
@click.option(
    "--header", "-H", "headers", metavar="NAME=VALUE", multiple=True, help="Of every record."
)
@click.option("--null", "-Z", "empty_is_null", is_flag=True, help="Empty keys, values are null.")
@click.option("--from-json", is_flag=True, help="Lines are what `magnetar consume --json` prints.")
@click.option(
    "--compression",
    "-z",
    type=click.Choice(_CODECS),
    default="none",
    show_default=True,
    help="How batches are compressed.",
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="All in one transaction: committed at the end of input, aborted if anything fails.",
)
@click.option(
    "--transaction-timeout",
    "transaction_timeout_ms",
    type=DURATION,
    default="1m",
    show_default=True,
    help="When the broker aborts the transaction by itself.",
)
@click.option("--json", "as_json", is_flag=True, help="Print where records were written, as JSON.")
@bootstrap
@timeout
@reports_errors
def produce(
    topic: str,
    files: tuple[Path, ...],
    partition: int | None,
    key_delimiter: bytes | None,
    key: str | None,
    delimiter: bytes,
    headers: tuple[str, ...],
    empty_is_null: bool,
    from_json: bool,
    compression: str,
    transactional_id: str | None,
    transaction_timeout_ms: int,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Write each line of standard input to a TOPIC as a record; or each FILE as one.

    Records with the same key go to the same partition, the one that Java's clients choose.
    Success means that all are acknowledged.

    \b
    echo hello | magnetar produce greetings
    magnetar produce orders -K : < orders.txt
    magnetar consume orders --exit --json | magnetar produce copy --from-json
    """
    from magnetar.cli.input_records import LineFormat
    from magnetar.client.cluster import Client
    from magnetar.client.producer import Producer
    from wire.records import Compression

    form = LineFormat(
        delimiter=delimiter,
        key_delimiter=key_delimiter,
        key=None if key is None else key.encode(),
        headers=[(name, value.encode()) for name, value in parse_settings(headers, "-H").items()],
        empty_is_null=empty_is_null,
        is_json=from_json,
    )
    with Client(bootstrap_server, timeout_ms / 1000) as client:
        producer = Producer(
            client,
            topic,
            partition=partition,
            compression=Compression[compression.upper()],
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        producer.open()
        _produce(producer, form, files)
    if as_json:
        print(json.dumps(_to_json(producer)))
    elif sys.stderr.isatty():
        print(f"{count(producer.acknowledged)} records written to {topic}", file=sys.stderr)


def _produce(producer: Producer, form: LineFormat, files: tuple[Path, ...]) -> None:
    from magnetar.cli.input_records import InputRecord, read_records
    from magnetar.client.cluster import ClientError

    try:
        if files:
            for path in files:
                value = path.read_bytes()
                producer.send([InputRecord(form.key, value, None, form.headers)])
        else:
            if sys.stdin.isatty():
                print("one record per line; Ctrl-D ends", file=sys.stderr)
            for records in read_records(sys.stdin.buffer, form):
                producer.send(records)
        producer.commit()
    except (ClientError, OSError) as failure:
        raise ClientError(f"{_sentence(failure)} {_outcome(producer)}") from None
    except KeyboardInterrupt:
        print(f"magnetar: interrupted. {_outcome(producer)}", file=sys.stderr)
        raise SystemExit(EXIT_INTERRUPTED) from None


def _sentence(failure: Exception) -> str:
    """Return what a failure says with a full stop, so that more can follow."""
    said = str(failure)
    return said if said.endswith(".") else f"{said}."


def _outcome(producer: Producer) -> str:
    """Abort what is open; say what became of the records that were sent."""
    from magnetar.client.cluster import ClientError

    if producer.transactional_id is None:
        return f"{count(producer.acknowledged)} records were written before."
    try:
        producer.abort()
    except ClientError as failure:
        return f"The transaction could not be aborted ({failure}); it ends by its timeout."
    return "The transaction is aborted: nobody sees any of it."


def _to_json(producer: Producer) -> dict[str, object]:
    return {
        "topic": producer.topic,
        "records": producer.acknowledged,
        "transactional_id": producer.transactional_id,
        "partitions": [
            {
                "partition": index,
                "records": written.records,
                "first_offset": written.first_offset,
                "end_offset": written.end_offset,
            }
            for index, written in sorted(producer.written.items())
        ],
    }
