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
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias

from logstore.disk.pools import Pool
from magnetar.runtime.background import WholeWork
from magnetar.runtime.delayed_response import DelayedResponse, DelayedResponses
from magnetar.runtime.request_context import Connection
from wire.errors import KafkaError
from wire.message import Message

#: What checks of batches that take long run in.
CHECKS = Pool("batch-checks", 2)

#: Begins what a request waits for: a check in a thread, or the next turn. Raises KafkaError.
Wait: TypeAlias = Callable[[], Awaitable[Any]]
#: A request's work: yields each wait, and is sent its result.
Steps: TypeAlias = Generator[Wait, Any, None]


class BatchChecks:
    """The requests that wait between their batches."""

    def __init__(self, whole_work: WholeWork) -> None:
        self._whole_work = whole_work
        self._responses = DelayedResponses(asyncio.get_running_loop())
        #: Of each connection that has a request here: done when its last one has appended.
        self._last: dict[Connection, asyncio.Future[None]] = {}

    def is_before(self, connection: Connection) -> bool:
        """Return whether a request of the connection is here, so that the next one has to wait."""
        return connection in self._last

    async def perform(
        self,
        connection: Connection,
        wait: Wait | None,
        steps: Steps,
        respond: Callable[[], Message | DelayedResponse | None],
    ) -> Message | None:
        """Perform a request's steps behind the connection's last ones, and return its response.

        `wait` is what the steps have yielded; None: they have not begun. The work goes on where
        the connection is closed meanwhile: a producer that asks for no answers may close it.
        """
        before = self._last.get(connection)
        appended = self._last[connection] = asyncio.get_running_loop().create_future()

        async def work() -> Message | None:
            try:
                if before is not None:
                    await before
                await self._go_on(wait, steps)
            finally:
                appended.set_result(None)
                if self._last[connection] is appended:
                    del self._last[connection]
            return await self._answer(respond())

        return await self._whole_work.carry(work())

    async def _answer(self, response: Message | DelayedResponse | None) -> Message | None:
        if not isinstance(response, DelayedResponse):
            return response
        ended = asyncio.get_running_loop().create_future()
        self._responses.begin(response, lambda: ended.set_result(None))
        await ended
        return response.make(response.is_late)

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
