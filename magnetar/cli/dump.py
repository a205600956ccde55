"""`magnetar dump`: the contents of a broker's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.commands import fail, json_lines, reports_errors
from magnetar.client.readable import moment, one_line

if TYPE_CHECKING:
    from magnetar.dumping.entry import Entry

_TIMES = frozenset({"timestamp", "max_timestamp", "last_timestamp", "started_ms"})


@click.command("dump", short_help="Show the contents of a stopped broker's files.")
@click.argument(
    "paths",
    metavar="PATH...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)
@click.option(
    "--records/--no-records",
    "with_records",
    default=None,
    help="Show the records of every batch.  [default: those of internal topics]",
)
@click.option(
    "--from-offset",
    "first_offset",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    help="Leave out batches that end before this offset.",
)
@json_lines
@reports_errors
def dump(
    paths: tuple[Path, ...], with_records: bool | None, first_offset: int, as_json: bool
) -> None:
    """Show the contents of the files of a stopped broker, magnetar's or Apache Kafka's.

    A PATH is a data directory, the directory of a partition, or a file: a segment with its batches,
    an index, a snapshot of producers, a checkpoint, the catalog. Records of __transaction_state,
    __consumer_offsets and __cluster_metadata are decoded.

    \b
    magnetar dump data/orders-0
    magnetar dump data/__transaction_state-3 --json | jq .decoded

    Exit code 1: a file is damaged. A line that begins with "damage" says what and where.
    """
    from magnetar.dumping.directory import Options, UnknownFile, dump_file, files_of

    options = Options(with_records, first_offset)
    damages = 0
    try:
        # Files one by one: a data directory may hold more than fits into memory.
        for path in (file for each in paths for file in files_of(each)):
            entries = dump_file(path, options)
            if not as_json:
                print(f"{path} ({path.stat().st_size} bytes)")
            for entry in entries:
                # Counted, not raised: users of this command look for what lies behind a damage.
                damages += entry.is_damage
                print(_as_json(path, entry) if as_json else _as_text(entry))
    except UnknownFile as unknown:
        raise click.UsageError(str(unknown)) from None
    if damages:
        places = "1 place" if damages == 1 else f"{damages} places"
        fail(f"damaged in {places}")


def _as_json(path: Path, entry: Entry) -> str:
    return json.dumps({"file": str(path), "kind": entry.kind, **entry.fields})


def _as_text(entry: Entry) -> str:
    indent = "    " if entry.kind == "record" else "  "
    shown = " ".join(f"{name}={_value(name, value)}" for name, value in entry.fields.items())
    # Clients choose names, keys and values.
    return one_line(f"{indent}{entry.kind} {shown}")


def _value(name: str, value: Any) -> str:
    if name in _TIMES and isinstance(value, int):
        # No space within a value: lines are made to be cut into fields.
        return moment(value).replace(" ", "T")
    if isinstance(value, str):
        return value if value and " " not in value else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)
