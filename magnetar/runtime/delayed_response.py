"""Responses that wait for syncs only, each with a time limit.

A handler that has done all its work in one step returns a `DelayedResponse` in place of its
response. Hundreds of such requests wait for the same sync, which calls each of them in its own step
(`Ledger.when_durable`): no task, no future, no further turn of the event loop. One timer serves all
time limits: a timer for each wait (`asyncio.timeout`) costs a twentieth of a small transaction, and
nearly every wait is over long before its limit. A limit is met late by at most `LOOK_S`, never
early: it is for limits of seconds. Kafka's name for the same idea: the purgatory of delayed
operations.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from logstore.partition.log import PartitionLog
from logstore.sync.group_commit import Waiter
from wire.message import Message

#: The interval between two looks at the time limits, while any response is delayed.
LOOK_S = 0.25


class Awaited(Protocol):
    """What becomes durable: a partition's ledger."""

    def when_durable(self, end_offset: int, waiter: Waiter) -> bool: ...


class DelayedResponses:
    """The delayed responses of all connections, and the timer for their time limits."""

    __slots__ = ("_loop", "_timer", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: In the order in which they began to wait.
        self.waiting: dict[DelayedResponse, None] = {}
        #: Set while a response waits.
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, response: DelayedResponse, on_end: Callable[[], None]) -> None:
        """Wait for the response's syncs; call `on_end` once, when they or its time are over."""
        response.on_end = on_end
        response.delayed = self
        if response.is_over:
            self.end_soon(response)
        if response.timeout_s == math.inf:
            # An idle fetch, which has a timer of its own: each look would pass thousands of them.
            return
        response.ends_at_s = self._loop.time() + response.timeout_s
        self.waiting[response] = None
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def end_soon(self, response: DelayedResponse) -> None:
        """End the response's wait in the next turn of the event loop."""
        self._loop.call_soon(response.end)

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
        "failure",
        "is_cancelled",
        "is_late",
        "is_over",
        "make",
        "on_cancel",
        "on_end",
        "timeout_s",
        "waits",
    )

    delayed: DelayedResponses
    ends_at_s: float

    def __init__(
        self,
        timeout_s: float,
        make: Callable[[bool], Message | None],
        on_cancel: Callable[[], None] | None = None,
    ) -> None:
        """`timeout_s` may be infinite. `make(is_late)` returns the response, or None where none is
        to be sent.

        `make` has to check by itself what has become durable: a sync that failed need not fail the
        request. `on_cancel` is called if the client has gone before the end of the wait.
        """
        self.timeout_s = timeout_s
        self.make = make
        self.on_cancel = on_cancel
        #: How many things the response waits for. Hand it over only if there are any.
        self.waits = 0
        #: None before the wait begins and after its end.
        self.on_end: Callable[[], None] | None = None
        #: Whether the syncs were over before the response was handed over.
        self.is_over = False
        self.is_late = False
        self.is_cancelled = False
        #: What has failed last of all that the response waits for.
        self.failure: Exception | None = None

    def wait_for(self, ledger: Awaited, end_offset: int) -> None:
        """Wait until everything below `end_offset` is durable, too. Raises as `when_durable`."""
        if ledger.when_durable(end_offset, self.on_durable):
            self.waits += 1

    def on_durable(self, failure: Exception | None) -> None:
        """Account for the end of one of the `waits`."""
        self.waits -= 1
        if failure is not None:
            self.failure = failure
        if self.waits:
            return
        if self.on_end is None:
            self.is_over = True
            return
        if failure is None:
            self.end()
        else:
            # In the next turn all that failed, or was deleted, with this ledger is known.
            self.delayed.end_soon(self)

    def made(self) -> Message | None:
        """Return the response once its wait is over; None where its client has gone. Call it once.

        Raises what refuses the request. What makes the response may lead back to this object: it
        is let go, or each such request would leave a cycle for the garbage collector.
        """
        make = self.make
        del self.make
        return None if self.is_cancelled else make(self.is_late)

    def cancel(self) -> None:
        """End the wait of a request whose client has gone."""
        self.is_cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()
        self.end()

    def end(self, *, is_late: bool = False) -> None:
        """End the wait, unless it has ended; the request's work stands in any case."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            self.is_late = is_late
            self.delayed.waiting.pop(self, None)
            on_end()


def when_durable(
    response: Message,
    awaited: Sequence[tuple[PartitionLog, int]],
    timeout_s: float,
    on_late: Callable[[], None],
) -> Message | DelayedResponse:
    """Return `response`, delayed until each log is durable up to its end offset (exclusive).

    If the time is over before that, `on_late` says so in the response. Raises what failed the sync.
    """

    def make(is_late: bool) -> Message:
        for log, end_offset in awaited:
            if log.reader.high_watermark >= end_offset:
                continue
            log.ledger.check_open()
            assert is_late, "one sync covers all that a step appends"
            on_late()
        return response

    delayed = DelayedResponse(timeout_s, make)
    for log, end_offset in awaited:
        delayed.wait_for(log.ledger, end_offset)
    return delayed if delayed.waits else response
