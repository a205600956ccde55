"""The handlers that wait for a turn of the event loop, and which of them is next.

In the order in which they began to wait, with two exceptions. One that has turns left goes on at
once. And one that has had no turn yet waits while `HALF_MADE_MAX` others have used up theirs: each
of these holds a response that is half made, and a hundred would hold a hundred times the memory.

A handler that comes back from the disk, or from a thread, is not counted among these, however many
there are: else slow ones would keep all others from beginning. What such a handler makes is no
larger than what it was asked for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import NamedTuple

#: More than one, so that a long request does not stop the short ones behind it.
HALF_MADE_MAX = 4

#: Resolved when the turn of a handler has come.
Resumed = asyncio.Future[None]


class _Place(NamedTuple):
    number: int
    resumed: Resumed
    is_half_made: bool


class HandlerQueue:
    """The queue of one event loop."""

    __slots__ = ("_begun", "_fresh", "_going_on", "_half_made", "_numbers")

    def __init__(self) -> None:
        #: The handlers that have turns left: one, or two where one has woken a step late.
        self._going_on: deque[Resumed] = deque()
        self._begun: deque[_Place] = deque()
        self._fresh: deque[_Place] = deque()
        self._numbers = count()
        #: Those of `_begun` that have used up their turns.
        self._half_made = 0

    def __len__(self) -> int:
        return len(self._begun) + len(self._fresh) + len(self._going_on)

    def go_on(self, resumed: Resumed) -> None:
        """Let the handler that had the turn before have the next one, too."""
        self._going_on.append(resumed)

    def begin(self, resumed: Resumed) -> None:
        """Let a handler wait that has had no turn yet."""
        self._fresh.append(_Place(next(self._numbers), resumed, False))

    def wait(self, resumed: Resumed, *, is_half_made: bool) -> None:
        """Let a handler wait that has begun. `is_half_made`: it has used up its turns."""
        self._half_made += is_half_made
        self._begun.append(_Place(next(self._numbers), resumed, is_half_made))

    def take(self) -> tuple[Resumed, bool]:
        """Remove the next handler; return it, and whether it goes on. The queue is not empty."""
        if self._going_on:
            return self._going_on.popleft(), True
        begun, fresh = self._begun, self._fresh
        may_begin = bool(fresh) and self._half_made < HALF_MADE_MAX
        if may_begin and (not begun or fresh[0].number < begun[0].number):
            return fresh.popleft().resumed, False
        place = begun.popleft()
        self._half_made -= place.is_half_made
        return place.resumed, False
