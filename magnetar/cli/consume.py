"""`magnetar consume`: records of topics to standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import click

from magnetar.cli.escapes import DelimiterType
from magnetar.cli.options import (
    EXIT_INTERRUPTED,
    bootstrap,
    forget_output,
    reports_errors,
    timeout,
)

if TYPE_CHECKING:
    from magnetar.cli.record_format import Print
    from magnetar.client.cluster import Client, TopicPartition
    from magnetar.client.consumer import Begin, Fetched, Reader
    from magnetar.client.group_member import GroupMember

_COMMIT_EVERY_S = 5.0
_RETRY_S = 1.0
_DELIMITER = DelimiterType()
_ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


class Limits(NamedTuple):
    """When to stop; None and False: never."""

    records: int | None
    at_end: bool


@click.command("consume", short_help="Print the records of topics.")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partition",
    "-p",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this one. Repeatable.  [default: all]",
)
@click.option(
    "--offset",
    "-o",
    metavar="WHERE",
    help="Where to begin: beginning, end, 17, -5 (the last five of each partition), s@TIME."
    "  [default: beginning, or where --group is]",
)
@click.option(
    "--count", "-c", "limit", metavar="N", type=click.IntRange(min=1), help="Stop after so many."
)
@click.option("--exit", "-e", "at_end", is_flag=True, help="Stop at the end of what there is.")
@click.option(
    "--group",
    "-g",
    metavar="GROUP",
    help="As a member of it: shares the partitions, begins at its offsets, commits them.",
)
@click.option(
    "--isolation",
    type=click.Choice(tuple(_ISOLATION)),
    default="read_committed",
    show_default=True,
    help="read_uncommitted: also what is open or aborted.",
)
@click.option(
    "--format",
    "-f",
    "template",
    metavar="FORMAT",
    help="As %t-%p@%o %T %k: %s %h\\n (topic, partition, offset, time, key, value, headers).",
)
@click.option("--key-delimiter", "-K", type=_DELIMITER, help="Print the key too, before this.")
@click.option(
    "--delimiter", "-D", type=_DELIMITER, default="\\n", show_default=True, help="After each."
)
@click.option("--null", "-Z", "shows_null", is_flag=True, help="Print NULL for what is null.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@bootstrap
@timeout
@reports_errors
def consume(
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    offset: str | None,
    limit: int | None,
    at_end: bool,
    group: str | None,
    isolation: str,
    template: str | None,
    key_delimiter: bytes | None,
    delimiter: bytes,
    shows_null: bool,
    as_json: bool,
    bootstrap_server: str,
    timeout_ms: int,
) -> None:
    """Print the records of TOPICs, and go on with those that come, until Ctrl-C.

    Only what is committed is printed, unless --isolation says otherwise.

    \b
    magnetar consume orders --exit
    magnetar consume orders -o -10 -f '%p@%o %k: %s\\n'
    magnetar consume orders -o s@2026-11-21T15:00 --json | jq .value
    """
    from magnetar.client.cluster import Client

    begin = _begin(offset)
    shown = _printer(template, key_delimiter, delimiter, shows_null, as_json)
    limits = Limits(limit, at_end)
    with Client(bootstrap_server, timeout_ms / 1000) as client:
        try:
            if group is None:
                reader = _open(client, topics, partitions, begin, _ISOLATION[isolation], at_end)
                _print_all(_read_patiently(reader, limits), shown)
            elif partitions:
                raise click.UsageError("--group shares out partitions: --partition excludes it.")
            else:
                _consume_as_member(
                    client, group, topics, begin, _ISOLATION[isolation], shown, limits, timeout_ms
                )
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read this has enough, as `head` does.
            forget_output()
            raise SystemExit(0) from None


def _begin(offset: str | None) -> Begin | None:
    from magnetar.client.consumer import Begin

    try:
        return None if offset is None else Begin.parse(offset)
    except ValueError as mistake:
        raise click.BadParameter(f"{mistake}.", param_hint="--offset") from None


def _printer(
    template: str | None,
    key_delimiter: bytes | None,
    delimiter: bytes,
    shows_null: bool,
    as_json: bool,
) -> Print:
    from magnetar.cli.record_format import compile_format, json_line, lines

    null = b"NULL" if shows_null else b""
    if as_json:
        if template is not None:
            raise click.UsageError("--json and --format exclude each other.")
        return json_line
    if template is None:
        return lines(key_delimiter, delimiter, null)
    try:
        return compile_format(template, null)
    except ValueError as mistake:
        raise click.BadParameter(f"{mistake}.", param_hint="--format") from None


def _open(
    client: Client,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    begin: Begin | None,
    isolation: int,
    at_end: bool,
) -> Reader:
    from magnetar.client.cluster import ClientError
    from magnetar.client.consumer import Begin, Reader

    leaders = client.topics(topics)
    wanted = [place for place in leaders if not partitions or place[1] in partitions]
    for topic in topics:
        for index in partitions:
            if (topic, index) not in leaders:
                raise ClientError(
                    f"topic {topic} has no partition {index} with a leader:"
                    f" `magnetar topics describe {topic}` shows them."
                )
    begin = begin or Begin.parse("beginning")
    positions = begin.resolve(client, leaders, wanted, isolation)
    return Reader(client, leaders, positions, isolation, waits=not at_end)


def _read(reader: Reader, limits: Limits) -> Iterator[Fetched | None]:
    """Yield records up to the limits; None after each fetch, when what was printed may go out."""
    seen = 0
    while not (limits.at_end and reader.is_at_end):
        for fetched in reader.fetch():
            yield fetched
            seen += 1
            if seen == limits.records:
                return
        yield None


def _read_patiently(reader: Reader, limits: Limits) -> Iterator[Fetched | None]:
    """Yield as `_read`; without a broker it waits for one, unless it is to stop at the end."""
    from magnetar.client.cluster import Unreachable

    seen = 0
    while True:
        try:
            left = None if limits.records is None else limits.records - seen
            for fetched in _read(reader, limits._replace(records=left)):
                seen += fetched is not None
                yield fetched
            return
        except Unreachable as failure:
            if limits.at_end:
                raise
            _wait_for_broker(failure)


def _wait_for_broker(failure: Exception) -> None:
    print(f"magnetar: warning: {failure} Trying again.", file=sys.stderr)
    time.sleep(_RETRY_S)


def _print_all(records: Iterator[Fetched | None], shown: Print) -> None:
    for fetched in records:
        _print(fetched, shown)
    _flush()


def _print(fetched: Fetched | None, shown: Print) -> None:
    if fetched is None:
        _flush()
    else:
        sys.stdout.buffer.write(shown(fetched))


def _flush() -> None:
    sys.stdout.buffer.flush()


def _consume_as_member(
    client: Client,
    group: str,
    topics: tuple[str, ...],
    begin: Begin | None,
    isolation: int,
    shown: Print,
    limits: Limits,
    timeout_ms: int,
) -> None:
    """Consume in a group. What was printed is committed: every few seconds, and at the end."""
    from magnetar.client.cluster import Unreachable
    from magnetar.client.group_member import GroupMember

    client.topics(topics)
    member = GroupMember(client, group, topics, timeout_ms)
    session = _Session(client, member, begin, isolation, shown)
    try:
        while True:
            try:
                if session.run(limits):
                    return
            except Unreachable as failure:
                if limits.at_end:
                    raise
                _wait_for_broker(failure)
    finally:
        with suppress(Unreachable):
            member.leave()


@dataclass
class _Session:
    """What a member does from one rebalance to the next."""

    client: Client
    member: GroupMember
    begin: Begin | None
    isolation: int
    shown: Print
    seen: int = 0

    def run(self, limits: Limits) -> bool:
        """Join, print and commit until the group rebalances; whether the limits are reached."""
        from magnetar.client.cluster import Unreachable

        assigned = self.member.join()
        reader = _assigned_reader(self.client, self.member, assigned, self.begin, self.isolation)
        reader.waits = not limits.at_end
        left = None if limits.records is None else limits.records - self.seen
        printed: dict[TopicPartition, int] = {}
        committed_at = time.monotonic()
        try:
            for fetched in _read_as_member(reader, self.member, limits._replace(records=left)):
                _print(fetched, self.shown)
                if fetched is not None:
                    self.seen += 1
                    continue
                printed = dict(reader.positions)
                if time.monotonic() - committed_at > _COMMIT_EVERY_S:
                    self.member.commit(printed)
                    committed_at = time.monotonic()
            _flush()
            printed = dict(reader.positions)
        except KeyboardInterrupt:
            # A broker that is away now must not make an interruption another attempt.
            done, printed = printed, {}
            with suppress(Unreachable):
                self.member.commit(done)
            raise
        finally:
            self.member.commit(printed)
        return (limits.at_end and reader.is_at_end) or self.seen == limits.records


def _assigned_reader(
    client: Client,
    member: GroupMember,
    assigned: list[TopicPartition],
    begin: Begin | None,
    isolation: int,
) -> Reader:
    from magnetar.client.consumer import Begin, Reader

    leaders = client.topics({topic for topic, _ in assigned}) if assigned else {}
    positions = member.committed(assigned) if assigned else {}
    new = [place for place in assigned if place not in positions]
    if new:
        begin = begin or Begin.parse("beginning")
        positions |= begin.resolve(client, leaders, new, isolation)
    return Reader(client, leaders, positions, isolation)


def _read_as_member(
    reader: Reader, member: GroupMember, limits: Limits
) -> Iterator[Fetched | None]:
    """Yield as `_read`, until the limits or a rebalance."""
    if not reader.positions:
        time.sleep(0.1)
    for fetched in _read(reader, limits):
        yield fetched
        if fetched is None:
            if not reader.positions:
                time.sleep(0.1)
            if member.must_rejoin():
                return
