"""Turns of the event loop, shared by the work that would hold the loop for long.

One turn is `SLICE_S` long, whatever number of connections and handlers want it. A connection with
many requests waiting, or a handler with much to list, asks `is_over` now and then. Once the turn is
over it goes to the end of a queue, of which the loop takes one entry at a time. In between the loop
serves every other connection. So a client that sends much waits for itself, and others wait for one
slice. A request that is short and alone never comes here: it costs nothing.

Connections take turns one after the other. A handler goes on for some turns before the next one has
its turn, and none goes on while a thread encodes a large response: a hundred half-made responses
would hold a hundred times the memory of one, and a collection of garbage look at them all. So
`HandlerQueue` lets few be half made, and the more wait the less the next one makes before it waits,
too.
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
SLICE_S = 0.002
#: Where so many handlers wait, one that begins has its share of this time before it waits, too: the
#: eighth has half a millisecond, in which most are done. What all that wait have made stays small.
_MANY = 8
_BEGIN_S = 0.004
#: The most elements of a piece: at a few microseconds each, they take less than a turn.
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
        "large",
        "on_queue",
    )

    def __init__(self, now_s: Callable[[], float] = perf_counter) -> None:
        self._now_s = now_s
        #: Is told whether connections wait for a turn, whenever that changes.
        self.on_queue: Callable[[bool], None] = _ignore
        #: Held by a handler whose response may take hundreds of megabytes, while it makes that: one
        #: at a time, since handlers that take turns hold what each of them has made.
        self.large = asyncio.Lock()
        self._connections: deque[Callable[[], object]] = deque()
        self._handlers = HandlerQueue()
        #: The tasks of handlers that have had a turn.
        self._begun: WeakSet[asyncio.Task[Any]] = WeakSet()
        #: The large responses that a thread encodes now.
        self._aside = 0
        self._ends_at_s = 0.0
        #: How many turns have begun.
        self._number = 0
        #: Whether `_next` will run soon. Between turns that are not asked for, none is counted.
        self._is_counted = False
        #: The task of the handler that has this turn.
        self._resumed: asyncio.Task[Any] | None = None

    def is_over(self) -> bool:
        """Return whether the caller has to give up its turn, by `later` or `give_up`."""
        now_s = self._now_s()
        if self._is_counted:
            return now_s >= self._ends_at_s
        self._ends_at_s = now_s + SLICE_S
        self._count()
        return False

    async def begin(self) -> None:
        """Return at once, or in a later turn where this one is over: before a piece that may take
        milliseconds, which is the first of many requests at the same time."""
        if self.is_over():
            await self.give_up()

    def later(self, go_on: Callable[[], object]) -> None:
        """Call `go_on`, of a connection, in a later turn, after all connections that wait now."""
        if not self._connections:
            self.on_queue(True)
        self._connections.append(go_on)
        self._count()

    async def give_up(self) -> None:
        """Return in a later turn: at once where the handler may go on, else after the others."""
        resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # In the first step of a request it is a stand-in for the task, which has had no turn.
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
        self._ends_at_s = self._now_s() + SLICE_S

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
        """Return the elements, piece by piece, as `each`: for what takes less than asking does."""
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
        """Resume no handler in the block, in which a thread encodes the response of one."""
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1
            if self._handlers:
                self._count()

    def _short_turn(self) -> tuple[int, float] | None:
        """Return the turn of a handler that begins while many wait, and where it ends; None: the
        handler has a whole one."""
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
        self._ends_at_s = self._now_s() + SLICE_S
        if self._handlers and not self._aside:
            resumed = self._handlers.take()
            # A handler whose client has gone was cancelled while it waited.
            if not resumed.done():
                resumed.set_result(None)
        # After that: the handler is to run, and to ask to go on, before the next turn.
        if self._connections or (self._handlers and not self._aside):
            self._count()
        if self._connections:
            go_on = self._connections.popleft()
            if not self._connections:
                self.on_queue(False)
            go_on()
