"""Turns of the event loop, shared by the work that would hold the loop for long.

One turn is `TURN_S` long, however many connections and handlers want one. A connection with many
requests waiting, or a handler with much to list, asks `is_over` now and then. When the turn is
over, it goes to the end of a queue, from which the loop takes one entry at a time. In between the
loop serves every other connection. So a client that sends much waits for its own work, and other
clients wait for one turn. A request that is short and alone never comes here: turns cost it
nothing.

Connections take turns one after the other. A handler has several turns before the next handler
has one, and no handler goes on while a thread encodes a large response. Else a hundred half-made
responses would hold a hundred times the memory of one, and the garbage collector would look at all
of them. So `HandlerQueue` lets only few be half made. And the more handlers wait, the shorter is
the first turn of the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakSet

from magnetar.runtime.handler_queue import HandlerQueue

#: How long the work of one turn may take.
TURN_S = 0.002
#: If so many handlers wait, a handler that begins has only its share of `_BEGIN_S` before it waits
#: too. With eight that is half a millisecond, in which most are done. So those that wait have made
#: little.
_MANY = 8
_BEGIN_S = 0.004
#: The most elements of a piece. At a few microseconds each, they take less than a turn.
_PIECE = 256
_SMALL_PIECE = 32

T = TypeVar("T")


def _ignore(_has_queue: bool) -> None:
    """The hook before one is set."""


class Turns:
    """The present turn, and the queues for the next ones. For one event loop."""

    __slots__ = (
        "_aside",
        "_begun",
        "_connections",
        "_ends_at_s",
        "_handlers",
        "_is_counted",
        "_now_s",
        "_number",
        "_resumed",
        "large_response",
        "on_queue",
    )

    def __init__(self, now_s: Callable[[], float] = perf_counter) -> None:
        self._now_s = now_s
        #: Called whenever connections begin or cease to wait for a turn, with whether some wait.
        self.on_queue: Callable[[bool], None] = _ignore
        #: Held by a handler while it makes a response of perhaps hundreds of megabytes. One at a
        #: time, since each handler that waits for a turn holds what it has made.
        self.large_response = asyncio.Lock()
        self._connections: deque[Callable[[], object]] = deque()
        self._handlers = HandlerQueue()
        #: The tasks of handlers that have had a turn.
        self._begun: WeakSet[asyncio.Task[Any]] = WeakSet()
        #: How many large responses a thread encodes now.
        self._aside = 0
        self._ends_at_s = 0.0
        #: How many turns have begun.
        self._number = 0
        #: Whether `_next` will run soon. While no turn is asked for, none is counted.
        self._is_counted = False
        #: The task of the handler that has this turn.
        self._resumed: asyncio.Task[Any] | None = None

    def is_over(self) -> bool:
        """Return whether the caller has to give up its turn, by `later` or `give_up`."""
        now_s = self._now_s()
        if self._is_counted:
            return now_s >= self._ends_at_s
        self._ends_at_s = now_s + TURN_S
        self._count()
        return False

    async def begin(self) -> None:
        """Return at once, or in a later turn if this one is over.

        Call it before work of milliseconds that many requests may begin at the same time.
        """
        if self.is_over():
            await self.give_up()

    def later(self, go_on: Callable[[], object]) -> None:
        """Call `go_on`, of a connection, in a later turn, after all connections that wait now."""
        if not self._connections:
            self.on_queue(True)
        self._connections.append(go_on)
        self._count()

    async def give_up(self) -> None:
        """Return in a later turn: the next one if the handler has turns left, else after others."""
        resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # In a request's first step the current task is a stand-in, which has had no turn.
        task = asyncio.current_task()
        if task is not None and task is self._resumed:
            self._handlers.go_on(resumed)
        elif task in self._begun:
            self._handlers.come_back(resumed)
        else:
            self._handlers.begin(resumed)
        self._count()
        await resumed
        # The future wakes its task one step of the loop later: its turn begins now.
        self._resumed = asyncio.current_task()
        assert self._resumed is not None, "a handler that has waited is in a task"
        self._begun.add(self._resumed)
        self._ends_at_s = self._now_s() + TURN_S

    async def each(self, elements: Iterable[T]) -> AsyncIterator[T]:
        """Return the elements one by one, giving up the turn whenever it is over.

        The state of the broker may change in between: `elements` must not.
        """
        # The first one asks for no turn, but heeds one that others have asked for.
        is_due, short = self._is_counted, self._short_turn()
        for element in elements:
            if is_due and (self.is_over() or (short and self._is_past(*short))):
                await self.give_up()
            is_due = True
            yield element

    async def pieces(
        self, elements: Sequence[T], length_max: int = _PIECE
    ) -> AsyncIterator[Sequence[T]]:
        """Return the elements in pieces, as `each`: for work that is shorter than `is_over`."""
        # As in `each`, where the first piece is small.
        is_due = self._is_counted or len(elements) > _SMALL_PIECE
        short = self._short_turn()
        for first in range(0, len(elements), length_max):
            if is_due and (self.is_over() or (short and self._is_past(*short))):
                await self.give_up()
            is_due = True
            yield elements[first : first + length_max]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Resume no handler during the block, in which a thread encodes a large response."""
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1
            if self._handlers:
                self._count()

    def _short_turn(self) -> tuple[int, float] | None:
        """Return number and end of the short first turn of a handler that begins while many wait.

        None: the handler has a whole turn.
        """
        waiting = len(self._handlers)
        if waiting < _MANY or asyncio.current_task() in self._begun:
            return None
        return self._number, self._now_s() + _BEGIN_S / waiting

    def _is_past(self, number: int, ends_at_s: float) -> bool:
        return number == self._number and self._now_s() >= ends_at_s

    def _count(self) -> None:
        if not self._is_counted:
            self._is_counted = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin the next turn: for one connection, and for one handler."""
        self._is_counted, self._resumed = False, None
        self._number += 1
        self._ends_at_s = self._now_s() + TURN_S
        if self._handlers and not self._aside:
            resumed = self._handlers.take()
            # A handler whose client has gone was cancelled while it waited.
            if not resumed.done():
                resumed.set_result(None)
        # Only now: the handler has to run, and ask to go on, before the next turn begins.
        if self._connections or (self._handlers and not self._aside):
            self._count()
        if self._connections:
            go_on = self._connections.popleft()
            if not self._connections:
                self.on_queue(False)
            go_on()
