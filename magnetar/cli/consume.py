"""`magnetar consume`: records of topics to standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import (
    DELIMITER,
    EXIT_INTERRUPTED,
    EXIT_OK,
    Connect,
    asks_brokers,
    complete_groups,
    complete_topics,
    forget_output,
    json_lines,
    sentence,
)
from magnetar.cli.where import begin_of, parse_begin

if TYPE_CHECKING:
    from magnetar.cli.record_text import Print
    from magnetar.client import Client, TopicPartition
    from magnetar.client.consumer import Begin, Reader
    from magnetar.client.group_member import GroupMember

#: Kafka's default, auto.commit.interval.ms: so much is printed again after a crash, at most.
_COMMIT_EVERY_S = 5.0
_RETRY_S = 1.0
#: A member without partitions has nothing to fetch, and would otherwise spin between heartbeats.
_IDLE_S = 0.1
_ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


@click.command("consume", short_help="Print the records of topics.")
@click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics
)
@click.option(
    "--partition",
    "-p",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Read this partition only. Repeatable.  [default: all]",
)
@click.option(
    "--offset",
    "-o",
    metavar="WHERE",
    help="Where to begin: beginning, end, 17, -5 (the last five of each partition), -5m (since five"
    " minutes ago), s@TIME. With --group only where the group has committed nothing.  [default:"
    " beginning]",
)
@click.option(
    "--until",
    "-u",
    metavar="WHERE",
    help="Stop before this record of each partition. Takes the values of --offset.",
)
@click.option(
    "--count", "-c", "limit", metavar="N", type=click.IntRange(min=1), help="Stop after N records."
)
@click.option("--exit", "-e", "at_end", is_flag=True, help="Stop at the end of the topics.")
@click.option(
    "--group",
    "-g",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Join GROUP: share its partitions, begin at its offsets, commit them.",
)
@click.option(
    "--isolation",
    type=click.Choice(tuple(_ISOLATION)),
    default="read_committed",
    show_default=True,
    help="read_uncommitted also prints open and aborted transactions.",
)
@click.option(
    "--format",
    "-f",
    "template",
    metavar="FORMAT",
    help="Such as %t-%p@%o %T %k: %s %h\\n (topic, partition, offset, time, key, value, headers).",
)
@click.option("--key-delimiter", "-K", type=DELIMITER, help="Print the key and this first.")
@click.option(
    "--delimiter",
    "-D",
    type=DELIMITER,
    default="\\n",
    show_default=True,
    help="Print this after each record.",
)
@click.option("--null", "-Z", "shows_null", is_flag=True, help="Print NULL for null.")
@json_lines
@asks_brokers
def consume(
    connect: Connect,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    offset: str | None,
    until: str | None,
    limit: int | None,
    at_end: bool,
    group: str | None,
    isolation: str,
    template: str | None,
    key_delimiter: bytes | None,
    delimiter: bytes,
    shows_null: bool,
    as_json: bool,
) -> None:
    """Print the records of TOPICs, and go on with new records until Ctrl-C.

    Prints committed records only, unless --isolation says otherwise. A TOPIC that begins with ^ is
    a regular expression: it stands for the topics that match it now.

    \b
    magnetar consume orders --exit
    magnetar consume orders -o -10 -f '%p@%o %k: %s\\n'
    magnetar consume orders -o s@2026-11-21T15:00 --json | jq .value
    magnetar consume '^orders-' -o -2h --until -1h
    """
    from magnetar.client.topics import matching

    if group is not None and partitions:
        raise click.UsageError("--group shares out partitions: --partition excludes it.")
    # Before the connection: mistakes in options are found without a broker.
    begin = begin_of(offset, "--offset")
    end = begin_of(until, "--until")
    shown = _printer(template, key_delimiter, delimiter, shows_null, as_json)
    with connect() as client:
        topics = tuple(matching(client, topics))
        session = _Session(client, begin, end, _ISOLATION[isolation], shown, limit, at_end)
        try:
            if group is None:
                _retry_unreachable(session, _Printing(session, topics, partitions))
            else:
                _consume_as_member(session, group, topics)
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of the output, `head` for example, has closed it.
            forget_output()
            raise SystemExit(EXIT_OK) from None


def _printer(
    template: str | None,
    key_delimiter: bytes | None,
    delimiter: bytes,
    shows_null: bool,
    as_json: bool,
) -> Print:
    from magnetar.cli.record_text import compile_format, json_line, lines

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


@dataclass
class _Session:
    """One run of the command: where to begin, how to print, when to stop, and what is printed."""

    client: Client
    begin: Begin | None
    until: Begin | None
    isolation: int
    shown: Print
    limit: int | None
    at_end: bool
    printed: int = 0

    def reader_of(self, topics: tuple[str, ...], partitions: tuple[int, ...]) -> Reader:
        """Return a reader of these partitions, or of all. ClientError: one does not exist.
        Unreachable: one has no leader, which it may get."""
        from magnetar.client import ClientError, Unreachable

        leaders = self.client.partitions(topics)
        for topic in topics:
            for index in partitions:
                if (topic, index) not in leaders:
                    raise ClientError(
                        f"topic {topic} has no partition {index}:"
                        f" `magnetar topics describe {topic}` shows its partitions."
                    )
        wanted = [place for place in leaders if not partitions or place[1] in partitions]
        for topic, index in wanted:
            if leaders[topic, index] < 0:
                raise Unreachable(f"partition {topic}-{index} has no leader.")
        return self.reader(leaders, wanted, {})

    def reader(
        self,
        leaders: dict[TopicPartition, int],
        wanted: list[TopicPartition],
        committed: dict[TopicPartition, int],
    ) -> Reader:
        """Return a reader that begins at the committed offsets, elsewhere as --offset says."""
        from magnetar.client.consumer import Reader

        positions = dict(committed)
        new = [place for place in wanted if place not in positions]
        if new:
            begin = self.begin or parse_begin("beginning")
            positions |= begin.resolve(self.client, leaders, new, self.isolation)
        until: dict[TopicPartition, int] = {}
        if self.until is not None and wanted:
            until = self.until.resolve(self.client, leaders, wanted, self.isolation)
        waits = not self.at_end
        return Reader(self.client, leaders, positions, self.isolation, waits, until=until)

    def is_done(self, reader: Reader) -> bool:
        is_read = reader.is_finished or (self.at_end and reader.is_at_end)
        return is_read or self.printed == self.limit

    def fetches(self, reader: Reader) -> Iterator[None]:
        """Print records until the command is done; yield after each fetch, its records written."""
        while not self.is_done(reader):
            for fetched in reader.fetch():
                sys.stdout.buffer.write(self.shown(fetched))
                self.printed += 1
                # The reader has moved past this record and no further, so that a member commits
                # what was printed.
                if self.printed == self.limit:
                    break
            # Before the caller commits: a committed record that was never printed would be lost.
            sys.stdout.buffer.flush()
            yield


class _Printing:
    """Prints what is in the topics, and goes on where it was when it is called again."""

    def __init__(
        self, session: _Session, topics: tuple[str, ...], partitions: tuple[int, ...]
    ) -> None:
        self._session = session
        self._topics = topics
        self._partitions = partitions
        self._reader: Reader | None = None

    def __call__(self) -> bool:
        """Print records until the command is done, and return True. Unreachable: a leader is
        away."""
        if self._reader is None:
            self._reader = self._session.reader_of(self._topics, self._partitions)
        else:
            self._reader.find_leaders()
        for _ in self._session.fetches(self._reader):
            pass
        return True


def _retry_unreachable(session: _Session, read: Callable[[], bool]) -> None:
    """Call `read` until it returns True. While a leader is unreachable, try again.

    With --exit only for --timeout: without a leader the end of the topic is not known.
    """
    from magnetar.client import Unreachable
    from magnetar.client.readable import printable

    begun_s, printed = time.monotonic(), 0
    while True:
        try:
            if read():
                return
        except Unreachable as failure:
            if session.printed > printed:
                begun_s, printed = time.monotonic(), session.printed
            if session.at_end and time.monotonic() - begun_s > session.client.timeout_s:
                raise
            told = printable(f"magnetar: warning: {sentence(failure)} Trying again.")
            print(told, file=sys.stderr)
            time.sleep(_RETRY_S)


def _consume_as_member(session: _Session, group: str, topics: tuple[str, ...]) -> None:
    """Print as a member of a group, and commit what is printed."""
    from magnetar.client import Unreachable
    from magnetar.client.group_member import GroupMember

    session.client.topics(topics)  # Refused: a topic is not there.
    member = GroupMember(session.client, group, topics)
    try:
        _retry_unreachable(session, lambda: _print_generation(session, member))
    finally:
        # The session's end frees the partitions as well; to leave is a courtesy.
        with suppress(Unreachable):
            member.leave()


def _print_generation(session: _Session, member: GroupMember) -> bool:
    """Join, print and commit until the group rebalances; return whether the command is done."""
    from magnetar.client import Unreachable

    assigned = member.join()
    # Without topics the question would be for all of them.
    leaders = session.client.topics({topic for topic, _ in assigned}) if assigned else {}
    committed = member.committed(assigned) if assigned else {}
    reader = session.reader(leaders, assigned, committed)
    printed: dict[TopicPartition, int] = {}
    committed_at = time.monotonic()
    try:
        for _ in session.fetches(reader):
            # A copy: the reader moves on with the next fetch, whose records are not printed yet.
            printed = dict(reader.positions)
            if time.monotonic() - committed_at > _COMMIT_EVERY_S:
                member.commit(printed)
                committed_at = time.monotonic()
            if not assigned:
                time.sleep(_IDLE_S)
            if member.must_rejoin():
                break
    except KeyboardInterrupt:
        # If the broker is away now, an interruption must not become another attempt.
        done, printed = printed, {}
        with suppress(Unreachable):
            member.commit(done)
        raise
    finally:
        member.commit(printed)
    return session.is_done(reader)
