"""Produce requests that wait between their batches, in the order in which a connection sent them.

Decompressing a megabyte, or compressing it by the topic's codec, takes up to fifty milliseconds, in
which no other client would be served. So a thread checks such a batch. The first batches of a
hundred partitions, whose files have to be created, take as long; between two of them, other clients
have a turn. A request that has to wait for either goes on here, and so do the requests that its
connection sends meanwhile, so that a producer's batches are appended in its order. Requests of
other connections do not wait.

The frames that wait count as requests in flight. The memory for decompressed batches is bounded by
the number of threads, and by one batch for each request, which is appended as soon as it is
checked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeAlias

from logstore.disk.pools import Pool
from magnetar.runtime.background import WholeWork
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.request_context import Connection
from magnetar.runtime.turns import Turns
from wire.errors import KafkaError
from wire.message import Message

#: The threads for checks of up to a tenth of a second.
CHECKS = Pool("batch-checks", 2)
#: The thread for longer checks: these wait for each other, and ordinary batches for none of them.
LONG_CHECKS = Pool("long-batch-checks", 1)

#: Begins a wait of a request, for a check in a thread or for the next turn. Raises KafkaError.
Wait: TypeAlias = Callable[[], Awaitable[Any]]
#: A request's work: yields each wait, and is sent its result.
Steps: TypeAlias = Generator[Wait, Any, None]


class _Request(NamedTuple):
    """A request that waits, or stands behind one that does."""

    wait: Wait | None
    """What the steps have yielded last. None: they have not begun."""
    steps: Steps
    respond: Callable[[], Message | DelayedResponse | None]
    answer: asyncio.Future[Message | DelayedResponse | None]


class BatchChecks:
    """The requests that wait between their batches."""

    def __init__(self, whole_work: WholeWork, turns: Turns) -> None:
        self._whole_work = whole_work
        self._turns = turns
        #: By connection: its requests that stand behind the one at work. A connection with a queue,
        #: even an empty one, has a request at work here, so its next one has to wait.
        self.queues: dict[Connection, deque[_Request]] = {}

    async def perform(
        self,
        connection: Connection,
        wait: Wait | None,
        steps: Steps,
        respond: Callable[[], Message | DelayedResponse | None],
    ) -> Message | DelayedResponse | None:
        """Perform a request's steps after those of the connection's earlier requests; return its
        response.

        `wait` is what the steps have yielded last; None: they have not begun. `respond` is called
        in the step in which they end. The work goes on if the connection is closed: a producer that
        asks for no answers may close it.
        """
        request = _Request(wait, steps, respond, asyncio.get_running_loop().create_future())
        queue = self.queues.get(connection)
        if queue is None:
            queue = self.queues[connection] = deque()
            self._whole_work.begin(self._work(connection, queue))
        queue.append(request)
        return await request.answer

    async def _work(self, connection: Connection, queue: deque[_Request]) -> None:
        """Perform the requests of a connection until none is left.

        Requests that need not wait are performed in one step, so one sync covers their batches.
        """
        try:
            while queue:
                wait, steps, respond, answer = queue.popleft()
                try:
                    await self._go_on(wait, steps)
                    response = respond()
                except Exception as failure:  # the request's own: its handler raises it
                    if answer.cancelled():
                        raise  # No request is left to answer it.
                    answer.set_exception(failure)
                else:
                    if not answer.cancelled():
                        answer.set_result(response)
                if queue and self._turns.is_over():
                    await self._turns.give_up()
        finally:
            del self.queues[connection]

    async def _go_on(self, wait: Wait | None, steps: Steps) -> None:
        try:
            if wait is None:
                wait = next(steps)
            while True:
                result, refusal = None, None
                try:
                    result = await wait()
                except KafkaError as error:
                    # Its traceback leads here, where it is: a cycle that would not be freed.
                    refusal = error.with_traceback(None)
                # Not while it is handled: each refusal would become the context of the next one,
                # and a request of many batches would keep all of them.
                wait = steps.send(result) if refusal is None else steps.throw(refusal)
        except StopIteration:
            return
        finally:
            # Thrown, it has a traceback again, whose frames lead here: Python 3.12 and later.
            refusal = None
