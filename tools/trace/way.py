"""The way of one request: its calls in order, counted and drawn. No broker, no clock.

How it is counted:
- A way begins when the event loop asks the connection for a buffer (the frame has arrived), and
  ends when the answer is handed to the transport. The wait for the sync lies in between, and so
  does what the event loop runs on behalf of others meanwhile. What is done after the answer
  (COMPLETE_* records, timers) is not part of the way. Only the event loop's thread counts.
- A *call* is a call of a Python function of the product's packages. Going on with a coroutine or
  a generator that has waited is a call as well: a reader has to go back to that file.
- Code that is written at run time (decoders and encoders of messages; the constructors of
  messages, dataclasses and named tuples) counts as calls, and belongs to no file.
- Comprehensions and generator expressions are no calls: from Python 3.12 on most are inlined.
- A *move* is a call in another file than the call before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple


class Call(NamedTuple):
    """One call. `file` is the path below the root, or "" for code that was written at run time."""

    depth: int
    file: str
    name: str


class Counts(NamedTuple):
    """What is counted of a way."""

    files: int
    calls: int
    moves: int


Way = tuple[Call, ...]


def counted(way: Way) -> Counts:
    """Return the counts of a way."""
    files = [call.file for call in way if call.file]
    moves = sum(before != after for before, after in pairwise(files))
    return Counts(len(set(files)), len(way), moves)


def usual(ways: Iterable[Way]) -> Way:
    """Return the way that was taken most often; of several such ways, the shortest one.

    A timer of the broker may fall between a request and its answer; such a way is rare.
    """
    found = list(ways)
    return max(found, key=lambda way: (found.count(way), -len(way)))


def drawn(way: Way) -> str:
    """Return the way as text: a line for each call, the file wherever it changes."""
    width = max((len(call.file) for call in way), default=0)
    lines = []
    file = ""
    for call, times in _collapsed(way):
        shown = call.file if call.file != file else ""
        file = call.file or file
        repeated = f"  ({times} times)" if times > 1 else ""
        lines.append(f"{shown:{width}}  {'  ' * call.depth}{call.name}{repeated}")
    return "\n".join(lines)


def _collapsed(way: Way) -> Iterator[tuple[Call, int]]:
    """Yield each call with the number of times that it follows itself."""
    times = 0
    for number, call in enumerate(way):
        times += 1
        if number + 1 == len(way) or way[number + 1] != call:
            yield call, times
            times = 0


def summary(counts: Counts) -> str:
    """Return the last line of a drawn way."""
    return f"files {counts.files}, calls {counts.calls}, moves {counts.moves}"
