"""The handlers that wait for a turn of the event loop, and which of them is next.

Handlers have their turns in the order in which they began to wait, with two exceptions. A handler
with turns left has the next one at once. And while `HALF_MADE_MAX` handlers wait that have used up
their turns, a new handler gets only `TURNS_FEW`. If these are too few for it, it waits until fewer
are half made: each of those holds a part of a response, and a hundred would hold a hundred times
the memory. So a short answer waits for one turn of each long one, and not for its end.

A handler that comes back from the disk, or from a thread, does not count as half made: otherwise
slow handlers would keep new ones from beginning. It holds no more than it was asked for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import NamedTuple

#: More than one, so that a long request does not stop the short ones behind it.
HALF_MADE_MAX = 4
#: How many turns a handler has before the next one: 50 ms, with everything else in between.
TURNS_MAX = 25
#: The same while many are half made: 8 ms, enough for a Produce or a Fetch of a hundred partitions.
TURNS_FEW = 4

#: Resolved when the turn of a handler has come.
Resumed = asyncio.Future[None]


class _Place(NamedTuple):
    number: int
    resumed: Resumed
    is_half_made: bool = False


class HandlerQueue:
    """The queue of one event loop."""

    __slots__ = (
        "_begun",
        "_fresh",
        "_going_on",
        "_half_made",
        "_has_few",
        "_numbers",
        "_turns_left",
        "_tried",
    )

    def __init__(self) -> None:
        #: The handlers that have turns left: one, or two where one has woken a step late.
        self._going_on: deque[Resumed] = deque()
        self._begun: deque[_Place] = deque()
        self._fresh: deque[_Place] = deque()
        #: Handlers that have used up their few turns.
        self._tried: deque[_Place] = deque()
        self._numbers = count()
        #: How many of `_begun` have used up their turns.
        self._half_made = 0
        #: The turns that the handler taken last may have after that one, and whether it got few.
        self._turns_left = 0
        self._has_few = False

    def __len__(self) -> int:
        return len(self._begun) + len(self._fresh) + len(self._tried) + len(self._going_on)

    def begin(self, resumed: Resumed) -> None:
        """Queue a handler that has had no turn yet."""
        self._fresh.append(_Place(next(self._numbers), resumed))

    def come_back(self, resumed: Resumed) -> None:
        """Queue a handler that has had turns, and has waited for something else since."""
        self._begun.append(_Place(next(self._numbers), resumed))

    def go_on(self, resumed: Resumed) -> None:
        """Queue the handler of the present turn; it is next if it has turns left."""
        if self._turns_left:
            self._turns_left -= 1
            self._going_on.append(resumed)
        elif self._has_few:
            self._tried.append(_Place(next(self._numbers), resumed))
        else:
            self._half_made += 1
            self._begun.append(_Place(next(self._numbers), resumed, is_half_made=True))

    def take(self) -> Resumed:
        """Remove the next handler and return it. The queue is not empty."""
        if self._going_on:
            return self._going_on.popleft()
        is_full = self._half_made >= HALF_MADE_MAX
        # If the queue is full of half-made answers, these are in `_begun`, so it is not empty.
        waiting = (self._begun, self._fresh) if is_full else (self._begun, self._fresh, self._tried)
        queue = min(filter(None, waiting), key=_number_of_first)
        place = queue.popleft()
        self._half_made -= place.is_half_made
        self._has_few = is_full and queue is self._fresh
        self._turns_left = (TURNS_FEW if self._has_few else TURNS_MAX) - 1
        return place.resumed


def _number_of_first(places: deque[_Place]) -> int:
    return places[0].number
