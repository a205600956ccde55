"""`magnetar top`: what a cluster is doing, live in a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import EXIT_INTERRUPTED, SOME_TIME, Connect, asks_brokers, sentence
from magnetar.cli.tables import table
from magnetar.client.readable import count, duration, one_line

if TYPE_CHECKING:
    from magnetar.client.activity import Activity

#: Go to the terminal's second screen, without a cursor; and back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
#: Go to the upper left corner; clear the rest of the line; clear all lines below.
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
#: Lines of the screen that are no rows: the summary, three titles and headers, and what is between.
_LINES_BESIDE = 11
#: The rows of each part: if the output is no terminal, and on a small terminal.
_ROWS, _ROWS_MIN = 20, 3


@click.command("top", short_help="Watch rates, lag and open transactions.")
@click.option(
    "--interval",
    "interval_ms",
    metavar="DURATION",
    type=SOME_TIME,
    default="2s",
    show_default=True,
    help="The time between two looks.",
)
@click.option(
    "--count", "-n", "times", metavar="N", type=click.IntRange(min=1), help="Stop after N looks."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and look.")
@asks_brokers
def top(connect: Connect, interval_ms: int, times: int | None, as_json: bool) -> None:
    """Watch how fast topics grow, how far groups are behind, and which transactions are open.

    Topics are sorted by rate, groups by lag, transactions by age. LAG counts offsets, so it counts
    the markers of transactions too. On a terminal each look replaces the last one, and q or Ctrl-C
    ends the command. Elsewhere each look is printed below the last one.

    A look that fails, as while a broker restarts, is a warning; with --count it ends the command.
    """
    from magnetar.client import ClientError
    from magnetar.client.activity import compare, look

    # A dumb terminal shows escapes as they come.
    can_draw = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    is_live = can_draw and not as_json
    with connect() as client, _screen(is_live) as pause:
        earlier = look(client)
        shown = 0
        while shown != times and not pause(interval_ms / 1000):
            try:
                later = look(client)
            except ClientError as failure:
                # Brokers restart, and topics go between two questions: the next look may succeed.
                if times is not None:
                    raise
                _warn(failure, is_live=is_live)
                continue
            _show(compare(earlier, later), is_live=is_live, as_json=as_json)
            earlier = later
            shown += 1


def drawn(activity: Activity, now_ms: int, rows_max: int) -> str:
    """Return a screen, with at most `rows_max` rows in each part."""
    summary = (
        f"{_of(activity.nodes, 'broker')}, {count(round(activity.rate))} records/s,"
        f" lag {count(activity.lag)}, {_of(len(activity.open), 'open transaction')}"
    )
    topics = [
        (each.topic, str(each.partitions), count(each.end), count(round(each.rate)))
        for each in activity.topics
    ]
    groups = [
        (each.group, each.state, count(each.lag), count(round(each.rate)))
        for each in activity.groups
    ]
    open_now = [
        (
            each.transactional_id,
            each.state,
            duration(each.open_for_ms(now_ms)),
            count(len(each.partitions)),
            count(sum(one.records_held_back for one in each.open_in)),
        )
        for each in activity.open
    ]
    parts = [
        _part(("topic", "partitions", "end", "records/s"), topics, rows_max),
        _part(("group", "state", "lag", "records/s"), groups, rows_max),
        _part(
            ("open transaction", "state", "open for", "partitions", "holds back"),
            open_now,
            rows_max,
        ),
    ]
    return "\n\n".join([summary, *parts])


def _part(header: Sequence[str], rows: Sequence[Sequence[str]], rows_max: int) -> str:
    shown = table(header, rows[:rows_max])
    left = len(rows) - rows_max
    return f"{shown}\n... and {left} more" if left > 0 else shown


def _show(activity: Activity, *, is_live: bool, as_json: bool) -> None:
    now_ms = round(time.time() * 1000)
    if as_json:
        print(json.dumps(activity.to_json(now_ms)), flush=True)
        return
    if not is_live:
        print(drawn(activity, now_ms, _ROWS), end="\n\n", flush=True)
        return
    size = shutil.get_terminal_size()
    rows_max = max((size.lines - _LINES_BESIDE) // 3, _ROWS_MIN)
    lines = drawn(activity, now_ms, rows_max).splitlines()[: size.lines]
    cut = (line[: size.columns] + _CLEAR_LINE for line in lines)
    sys.stdout.write(_HOME + "\r\n".join(cut) + _CLEAR_BELOW)
    sys.stdout.flush()


def _warn(failure: Exception, *, is_live: bool) -> None:
    told = one_line(f"magnetar: warning: {sentence(failure)} Looking again.")
    if not is_live:
        print(told, file=sys.stderr)
        return
    # In the place of the summary: what is below was there before.
    sys.stdout.write(_HOME + told[: shutil.get_terminal_size().columns] + _CLEAR_LINE)
    sys.stdout.flush()


@contextmanager
def _screen(is_live: bool) -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits, and returns whether the person wants to end."""
    try:
        if not is_live:
            yield _sleep
            return
        with _keyboard() as pause:
            sys.stdout.write(_ENTER + _HOME + _CLEAR_BELOW + "looking...")
            sys.stdout.flush()
            try:
                yield pause
            finally:
                sys.stdout.write(_LEAVE)
                sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)  # Until the next look: no key can be asked for here.
    return False


@contextmanager
def _keyboard() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits for a while, or until q is typed, and then returns True."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty
    from select import select

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    # Characters as they are typed; Ctrl-C still interrupts.
    tty.setcbreak(stdin)

    def pause(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select([stdin], [], [], left)
            if ready and sys.stdin.read(1) in "qQ":
                return True
        return False

    try:
        yield pause
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _of(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"
