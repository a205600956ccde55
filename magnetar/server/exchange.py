"""One request, from its decoding until its answer is sent."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns

from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.request_context import RequestContext
from magnetar.server.first_step import Rest
from magnetar.server.frames import Frame
from magnetar.server.route import Route
from magnetar.server.writing import Answer
from wire.message import Message

#: How a Fetch begins.
_FETCH_BYTES = (1).to_bytes(2, "big")


class Exchange:
    """One request, from its decoding until its answer is sent.

    `answer` is None until it is known. `waits_for` is None until the request has to wait.
    """

    __slots__ = (
        "answer",
        "began_ns",
        "context",
        "held",
        "is_large",
        "overlaps",
        "request",
        "route",
        "size_bytes",
        "waits_for",
    )

    #: What the frame decodes to; of a large request, set once it is decoded, until it is answered.
    request: Message

    def __init__(self, route: Route, context: RequestContext) -> None:
        self.route = route
        self.context = context
        self.began_ns = perf_counter_ns()
        #: What the request holds in an account while it waits: its bytes in memory. A large one
        #: holds nothing until it is decoded.
        self.size_bytes = 0
        #: Whether the request has so many elements that a thread decodes it.
        self.is_large = False
        #: The large messages of a request that is answered: to be released.
        self.held: list[Message] = []
        #: Whether others may start while the request waits: it has done its work by then.
        self.overlaps = route.overlaps
        self.answer: Answer | None = None
        self.waits_for: DelayedResponse | Rest | asyncio.Task[None] | None = None

    def give_way(self, frame: Frame) -> None:
        """Answer soon, if this is a fetch, since the request in `frame` stands behind it: a client
        may ask there who leads a partition that has moved.

        Not for another fetch: two that wait by turns would never rest.
        """
        context = self.context
        if not self.route.gives_way or context.is_waited_for:
            return
        if bytes(frame[:2]) != _FETCH_BYTES:
            context.is_waited_for = True
            if context.give_way is not None:
                context.give_way()

    def cancel(self, *, is_aborted: bool) -> None:
        """End the wait, since no client hears the answer. Decisions stand.

        What appends and has not begun goes on, unless it `is_aborted`: it may want no answer.
        """
        waits_for = self.waits_for
        has_begun = self.overlaps or not self.route.overlaps
        if (has_begun or is_aborted) and isinstance(waits_for, DelayedResponse | asyncio.Task):
            waits_for.cancel()
