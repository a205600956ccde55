"""`magnetar produce`: records from standard input or from files to a topic."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import (
    DELIMITER,
    DURATION,
    EXIT_INTERRUPTED,
    Connect,
    asks_brokers,
    complete_topics,
    explained,
    fail,
    parse_settings,
    print_json,
    sentence,
)
from magnetar.client.readable import count

if TYPE_CHECKING:
    from magnetar.cli.record_text import LineFormat
    from magnetar.client.producer import Producer

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command("produce", short_help="Write lines of standard input to a topic.")
@click.argument("topic", shell_complete=complete_topics)
@click.argument(
    "files",
    metavar="[FILE...]",
    nargs=-1,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--partition",
    "-p",
    metavar="N",
    type=click.IntRange(min=0),
    help="Write to this partition only.",
)
@click.option("--key-delimiter", "-K", type=DELIMITER, help="Lines are KEY, this delimiter, VALUE.")
@click.option("--key", "-k", help="The key of records without one.")
@click.option(
    "--delimiter",
    "-D",
    type=DELIMITER,
    default="\\n",
    show_default=True,
    help="The end of a record.",
)
@click.option(
    "--header",
    "-H",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of every record. Repeatable.",
)
@click.option(
    "--null", "-Z", "empty_is_null", is_flag=True, help="Send empty keys and values as null."
)
@click.option(
    "--create",
    is_flag=True,
    help="Let the broker create a missing topic, if its auto.create.topics.enable allows that.",
)
@click.option("--from-json", is_flag=True, help="Read what `magnetar consume --json` prints.")
@click.option(
    "--compression",
    "-z",
    type=click.Choice(_CODECS),
    default="none",
    show_default=True,
    help="The compression of batches.",
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Write all in one transaction: committed at the end of input, aborted on a failure.",
)
@click.option(
    "--transaction-timeout",
    "transaction_timeout_ms",
    type=DURATION,
    default="1m",
    show_default=True,
    help="After this time the broker aborts the transaction.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each partition's offsets as JSON.")
@asks_brokers
def produce(
    connect: Connect,
    topic: str,
    files: tuple[Path, ...],
    partition: int | None,
    key_delimiter: bytes | None,
    key: str | None,
    delimiter: bytes,
    headers: tuple[str, ...],
    empty_is_null: bool,
    create: bool,
    from_json: bool,
    compression: str,
    transactional_id: str | None,
    transaction_timeout_ms: int,
    as_json: bool,
) -> None:
    """Write each line of standard input to TOPIC as a record; or each FILE as one record.

    Records with the same key go to the same partition, chosen as Java's clients choose it.
    Exit code 0: all records are acknowledged.

    \b
    echo hello | magnetar produce greetings --create
    magnetar produce orders -K : < orders.txt
    magnetar consume orders --exit --json | magnetar produce copy --from-json
    """
    from magnetar.cli.record_text import LineFormat
    from magnetar.client import Refused
    from magnetar.client.producer import Producer
    from wire.error_code import ErrorCode
    from wire.records import Compression

    form = LineFormat(
        delimiter=delimiter,
        key_delimiter=key_delimiter,
        key=None if key is None else os.fsencode(key),
        headers=_headers(headers),
        empty_is_null=empty_is_null,
        is_json=from_json,
    )
    with connect() as client:
        producer = Producer(
            client,
            topic,
            partition=partition,
            compression=Compression[compression.upper()],
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            may_create=create,
        )
        # Before the first line is read: a missing topic should not cost the user what was typed.
        try:
            producer.open()
        except Refused as refusal:
            if refusal.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            advice = f"--create makes it, and so does `magnetar topics create {topic}`."
            fail(f"{sentence(refusal)} {advice}", refusal.code.name)
        _produce(producer, form, files)
    if as_json:
        print_json(_to_json(producer))
    # Silent in scripts, as `cp` is: the exit code says that all is acknowledged.
    elif sys.stderr.isatty():
        print(f"{count(producer.acknowledged)} records written to {topic}", file=sys.stderr)


def _headers(texts: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Return the headers of options -H. A value may be any bytes, a name is UTF-8."""
    found = parse_settings(texts, "-H")
    for name in found:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise click.BadParameter(f"{name!r} is not UTF-8.", param_hint="-H") from None
    return [(name, os.fsencode(value)) for name, value in found.items()]


def _produce(producer: Producer, form: LineFormat, files: tuple[Path, ...]) -> None:
    from magnetar.cli.record_text import read_records
    from magnetar.client import ClientError
    from magnetar.client.batching import ProducerRecord

    try:
        if files:
            for path in files:
                value = path.read_bytes()
                # Sent one by one: files may be large, and only one of them is held in memory.
                producer.send([ProducerRecord(form.key, value, None, form.headers)])
        else:
            if sys.stdin.isatty():
                print("one record per line; Ctrl-D ends", file=sys.stderr)
            for records in read_records(sys.stdin.buffer, form):
                producer.send(records)
        producer.commit()
    except (ClientError, OSError) as failure:
        # Without this, the user would not know what became of the earlier records.
        what = sentence(ClientError(explained(failure)))
        raise ClientError(f"{what} {_outcome(producer)}") from None
    except KeyboardInterrupt:
        print(f"magnetar: interrupted. {_outcome(producer)}", file=sys.stderr)
        raise SystemExit(EXIT_INTERRUPTED) from None


def _outcome(producer: Producer) -> str:
    """Abort the open transaction; return what became of the records that were sent."""
    from magnetar.client import ClientError

    if producer.transactional_id is None:
        return f"Records written before: {count(producer.acknowledged)}."
    try:
        # Without it, readers would wait for the transaction's timeout.
        producer.abort()
    except ClientError as failure:
        return f"The transaction could not be aborted ({failure}); its timeout aborts it."
    return "The transaction is aborted: read_committed readers see none of it."


def _to_json(producer: Producer) -> list[dict[str, object]]:
    return [
        {
            "topic": producer.topic,
            "partition": index,
            "records": written.records,
            "first_offset": written.first_offset,
            "end_offset": written.end_offset,
            "transactional_id": producer.transactional_id,
        }
        for index, written in sorted(producer.written.items())
    ]
