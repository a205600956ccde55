"""Checks of large batches: in threads, in the order in which a connection sent its requests.

Decompressing a megabyte, or compressing it by the topic's codec, takes up to fifty milliseconds, in
which no other client would be served. A request whose batches take so long goes on here, and so
does each request that its connection sends meanwhile: the producer's batches are appended in its
order. Other connections are not waited for.

The account of requests in flight holds the frames that wait. What they inflate to is bounded by the
number of threads, and by one batch for each request, which is appended as soon as it is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from logstore.partition.client_batch import CheckedBatch
from magnetar.runtime.background import report
from magnetar.runtime.delayed_response import DelayedResponse, DelayedResponses
from magnetar.runtime.request_context import Connection
from wire.errors import KafkaError
from wire.message import Message

THREADS = 2

#: The check of one batch, for a thread. Raises KafkaError.
Check: TypeAlias = Callable[[], CheckedBatch]
#: A request's work: yields each check that takes long, and is sent what the check returned.
Steps: TypeAlias = Generator[Check, CheckedBatch, None]


class BatchChecks:
    """The requests whose batches are checked in threads."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        """`fail` gets what stops the broker, where no connection is left to tell of it."""
        self._fail = fail
        self._executor: ThreadPoolExecutor | None = None
        self._responses = DelayedResponses(asyncio.get_running_loop())
        #: The last request of each connection that has one here.
        self._last: dict[Connection, asyncio.Task[Message | None]] = {}
        self._running: set[asyncio.Task[Message | None]] = set()

    def is_before(self, connection: Connection) -> bool:
        """Return whether a request of the connection is here, so that the next one has to wait."""
        return connection in self._last

    async def perform(
        self,
        connection: Connection,
        check: Check | None,
        steps: Steps,
        respond: Callable[[], Message | DelayedResponse | None],
    ) -> Message | None:
        """Perform a request's steps behind the connection's last ones, and return its response.

        `check` is what the steps have yielded; None: they have not begun. The work goes on where
        the connection is closed meanwhile: a producer that asks for no answers may close it.
        """
        before = self._last.get(connection)
        task = asyncio.get_running_loop().create_task(
            self._perform(connection, before, check, steps, respond)
        )
        self._last[connection] = task
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda ended: report(ended, self._fail))
            raise

    async def _perform(
        self,
        connection: Connection,
        before: asyncio.Task[Message | None] | None,
        check: Check | None,
        steps: Steps,
        respond: Callable[[], Message | DelayedResponse | None],
    ) -> Message | None:
        try:
            if before is not None:
                await asyncio.wait((before,))
            await self._go_on(check, steps)
        finally:
            if self._last.get(connection) is asyncio.current_task():
                del self._last[connection]
        response = respond()
        if isinstance(response, DelayedResponse):
            ended = asyncio.get_running_loop().create_future()
            self._responses.begin(response, lambda: ended.set_result(None))
            await ended
            return response.make(response.is_late)
        return response

    async def _go_on(self, check: Check | None, steps: Steps) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, "batch-checks")
        loop = asyncio.get_running_loop()
        try:
            if check is None:
                check = next(steps)
            while True:
                try:
                    checked = await loop.run_in_executor(self._executor, check)
                except KafkaError as refusal:
                    check = steps.throw(refusal)
                else:
                    check = steps.send(checked)
        except StopIteration:
            return

    async def stop(self) -> None:
        """End what is under way; no connection is left that could bring more."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._executor is not None:
            self._executor.shutdown()
