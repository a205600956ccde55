"""Work of a broker beside its requests: tasks that end with the broker. A failed task ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Background:
    """At most one task. An exception in it stops the broker."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` as a task of the running event loop."""
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(lambda task: report(task, self._fail))

    def cancel(self) -> None:
        """Cancel the task at its next await, if there is one."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Cancel the task; return when it has ended."""
        self.cancel()
        await self.ended()

    async def ended(self, timeout_s: float | None = None) -> None:
        """Return when the task has ended, or after a while."""
        if self._task is not None:
            # Its exception, if any, has gone to `fail` already.
            await asyncio.wait((self._task,), timeout=timeout_s)


class Tasks:
    """Any number of tasks without results. An exception in one stops the broker."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._running: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` as a task of the running event loop, unless `cancel` was called."""
        if self._is_over:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        # The event loop holds tasks weakly: without this set a task could vanish half way.
        self._running.add(task)
        task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """Cancel every task at its next await, and begin no other."""
        self._is_over = True
        for task in self._running:
            task.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        report(task, self._fail)


class WholeWork:
    """Work of requests that is done to its end, even if the client has gone."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        """`fail` gets an exception of such work if the request has ended before."""
        self._fail = fail
        self._running: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin work whose end no request awaits. What it raises goes to `fail`."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        report(task, self._fail)

    async def carry(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` returns; cancelling the caller does not cancel it."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda ended: report(ended, self._fail))
            raise
        finally:
            # The traceback of an error of the work leads here. With the task, which has the error,
            # this frame would be a cycle.
            del task

    async def ended(self) -> None:
        """Return when all work under way has ended. The caller makes sure that no more begins."""
        await asyncio.gather(*self._running, return_exceptions=True)


def report(task: asyncio.Task[Any], fail: Callable[[BaseException], None]) -> None:
    """Pass to `fail` the exception of an ended task, unless the task was cancelled."""
    if not task.cancelled() and (failure := task.exception()) is not None:
        fail(failure)
