"""Responses that wait for syncs only, each with a time limit.

A handler that has done all its work in one step returns a `DelayedResponse` in place of its
response. Hundreds of such requests wait for the same sync. A callback on the sync's future costs a
quarter of what a task for each request costs, and one timer serves all time limits: a timer for
each wait (`asyncio.timeout`) costs a twentieth of a small transaction, and nearly every wait is
over long before its limit. A limit is met late by at most `LOOK_S`, never early: it is for limits
of seconds. Kafka's name for the same idea: the purgatory of delayed operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wire.message import Message

#: The interval between two looks at the time limits, while any response is delayed.
LOOK_S = 0.25


class DelayedResponses:
    """The delayed responses of all connections, and the timer for their time limits."""

    __slots__ = ("_loop", "_timer", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.waiting: set[DelayedResponse] = set()
        #: Set while a response waits.
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, response: DelayedResponse, on_end: Callable[[], None]) -> None:
        """Wait for the response's syncs; call `on_end` once, when they or its time are over."""
        response.ends_at_s = self._loop.time() + response.timeout_s
        response.on_end = on_end
        response.delayed = self
        self.waiting.add(response)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)
        response.futures[-1].add_done_callback(response.wait_for_next)

    def _look(self) -> None:
        now_s = self._loop.time()
        for response in [one for one in self.waiting if one.ends_at_s <= now_s]:
            response.end(is_late=True)
        self._timer = self._loop.call_later(LOOK_S, self._look) if self.waiting else None


class DelayedResponse:
    """The response of one request, which is made when all its syncs are over, or its time is."""

    __slots__ = (
        "delayed",
        "ends_at_s",
        "futures",
        "is_cancelled",
        "is_late",
        "make",
        "on_end",
        "timeout_s",
    )

    delayed: DelayedResponses
    ends_at_s: float

    def __init__(
        self,
        futures: list[asyncio.Future[None]],
        timeout_s: float,
        make: Callable[[bool], Message | None],
    ) -> None:
        """`make(is_late)` returns the response, or None where none is to be sent.

        It looks at the results of `futures` itself: one that failed need not fail the request.
        `futures` are one or more, and the list is emptied as they end.
        """
        assert futures, "a response that waits for nothing is not delayed"
        self.futures = futures
        self.timeout_s = timeout_s
        self.make = make
        #: None before the wait begins and after its end.
        self.on_end: Callable[[], None] | None = None
        self.is_late = False
        self.is_cancelled = False

    def wait_for_next(self, _done: asyncio.Future[None]) -> None:
        """End the wait, or wait for the next future that is not done."""
        if self.on_end is None:
            return
        futures = self.futures
        # One callback at a time: syncs that end together leave nothing to wait for after the first.
        while futures:
            if not futures[-1].done():
                futures[-1].add_done_callback(self.wait_for_next)
                return
            futures.pop()
        self.end()

    def cancel(self) -> None:
        """End the wait of a request whose client has gone."""
        self.is_cancelled = True
        self.end()

    def end(self, *, is_late: bool = False) -> None:
        """End the wait, unless it has ended; the request's work stands in any case."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            self.is_late = is_late
            self.delayed.waiting.discard(self)
            on_end()
