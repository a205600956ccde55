"""Produce requests that wait between their batches, in the order in which a connection sent them.

Decompressing a megabyte, or compressing it by the topic's codec, takes up to fifty milliseconds, in
which no other client would be served. Such a check goes to a thread. The first batches of a hundred
partitions, whose files are made, take as long; between two of them others have their turn. A
request that waits so goes on here, and so does each request that its connection sends meanwhile:
the producer's batches are appended in its order. Other connections are not waited for.

The account of requests in flight holds the frames that wait. What they inflate to is bounded by the
number of threads, and by one batch for each request, which is appended as soon as it is checked.
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

#: What checks of batches run in that take up to a tenth of a second.
CHECKS = Pool("batch-checks", 2)
#: What longer ones run in: they wait for each other, and ordinary batches wait for none of them.
LONG_CHECKS = Pool("long-batch-checks", 1)

#: Begins what a request waits for: a check in a thread, or the next turn. Raises KafkaError.
Wait: TypeAlias = Callable[[], Awaitable[Any]]
#: A request's work: yields each wait, and is sent its result.
Steps: TypeAlias = Generator[Wait, Any, None]


class _Request(NamedTuple):
    """A request that waits, or stands behind one that does."""

    wait: Wait | None
    """What the steps have yielded; None: they have not begun."""
    steps: Steps
    respond: Callable[[], Message | DelayedResponse | None]
    answer: asyncio.Future[Message | DelayedResponse | None]


class BatchChecks:
    """The requests that wait between their batches."""

    def __init__(self, whole_work: WholeWork, turns: Turns) -> None:
        self._whole_work = whole_work
        self._turns = turns
        #: By connection: its requests here that have not begun again. A connection with a queue, be
        #: it empty, has a request here: its next one has to wait.
        self.queues: dict[Connection, deque[_Request]] = {}

    async def perform(
        self,
        connection: Connection,
        wait: Wait | None,
        steps: Steps,
        respond: Callable[[], Message | DelayedResponse | None],
    ) -> Message | DelayedResponse | None:
        """Perform a request's steps behind the connection's last ones, and return its response.

        `wait` is what the steps have yielded; None: they have not begun. `respond` is called in the
        step in which they end. The work goes on where the connection is closed meanwhile: a
        producer that asks for no answers may close it.
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

        Those that need not wait themselves go on in one step, so that one sync has their batches.
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
                try:
                    result = await wait()
                except KafkaError as refusal:
                    wait = steps.throw(refusal)
                else:
                    wait = steps.send(result)
        except StopIteration:
            return
