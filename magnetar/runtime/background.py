"""Work of a broker beside its requests: tasks that end with it, and whose failure ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Background:
    """At most one task. An exception in it stops the broker."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started."""
        return self._task is not None

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` as a task of the running event loop."""
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(lambda task: report(task, self._fail))

    def cancel(self) -> None:
        """Cancel the task at its next await, if there is one."""
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Return when the task has ended."""
        if self._task is not None:
            # Its exception, if any, has gone to `fail` already.
            await asyncio.gather(self._task, return_exceptions=True)


class Tasks:
    """Any number of tasks without an answer. What one raises stops the broker."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._running: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        """Whether any task runs."""
        return bool(self._running)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Begin `work`. On the event loop."""
        task = asyncio.get_running_loop().create_task(work)
        # The event loop holds tasks weakly: without this one could vanish half way.
        self._running.add(task)
        task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """Stop every task at its next await."""
        for task in self._running:
            task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        report(task, self._fail)


def report(task: asyncio.Task[Any], fail: Callable[[BaseException], None]) -> None:
    """Pass to `fail` the exception of an ended task, unless the task was cancelled."""
    if not task.cancelled() and (failure := task.exception()) is not None:
        fail(failure)
