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
from magnetar.runtime.background import WholeWork
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

    def __init__(self, whole_work: WholeWork) -> None:
        self._whole_work = whole_work
        self._executor: ThreadPoolExecutor | None = None
        self._responses = DelayedResponses(asyncio.get_running_loop())
        #: Of each connection that has a request here: done when its last one has appended.
        self._last: dict[Connection, asyncio.Future[None]] = {}

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
        appended = self._last[connection] = asyncio.get_running_loop().create_future()

        async def work() -> Message | None:
            try:
                if before is not None:
                    await before
                await self._go_on(check, steps)
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

    def stop(self) -> None:
        """End the threads; all work that used them has ended."""
        if self._executor is not None:
            self._executor.shutdown()
