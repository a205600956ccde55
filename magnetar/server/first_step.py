"""Running a coroutine up to its first wait without making a task of it.

Most requests are answered without waiting; a task for each costs more than the handler. So the
first step runs at once, in the caller's, and only a coroutine that waits goes on in a task. During
the first step `asyncio.current_task()` is a stand-in, which hands `cancel` on to that task:
asyncio.timeout and TaskGroup work in it. Source: the asyncio documentation, "Extending", task
lifetime support.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # documented, though underscored: see above
from collections.abc import Coroutine, Generator
from types import coroutine as awaitable
from typing import Any


class _StandIn:
    """Stands in for the task during the first step."""

    task: asyncio.Task[Any] | None = None

    def cancel(self, message: object = None) -> bool:
        return self.task is not None and self.task.cancel(message)

    def cancelling(self) -> int:
        return 0 if self.task is None else self.task.cancelling()

    def uncancel(self) -> int:
        return 0 if self.task is None else self.task.uncancel()


class Rest:
    """A coroutine after its first step: what it awaits there, and the way on."""

    __slots__ = ("_awaited", "_coroutine", "_is_resumed", "_stand_in")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], awaited: object, stand_in: _StandIn
    ) -> None:
        self._coroutine = coroutine
        self._awaited = awaited
        self._stand_in = stand_in
        self._is_resumed = False

    def run_in(self, task: asyncio.Task[None]) -> None:
        """Name the task that awaits `resume`."""
        self._stand_in.task = task

    @awaitable
    def resume(self) -> Generator[Any, Any, Any]:
        """Wait for what the first step awaits, then run the coroutine to its end."""
        self._is_resumed = True
        awaited, self._awaited = self._awaited, None
        while True:
            try:
                yield awaited
            except BaseException as error:  # the task was cancelled, or the future has failed
                # The error's traceback leads to this frame. With the future that has the error the
                # frame would be a cycle.
                awaited = None
                try:
                    awaited = self._coroutine.throw(error)
                except StopIteration as done:
                    return done.value
            else:
                # Delegation is C code: from here on the coroutine costs what any other does.
                return (yield from self._coroutine)

    def abandon(self) -> None:
        """Cancel a coroutine whose task was cancelled before its first step."""
        if self._is_resumed:
            return
        try:
            self._coroutine.throw(asyncio.CancelledError())
        except (asyncio.CancelledError, StopIteration):
            return
        self._coroutine.close()


def failure_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Return what has failed an ended task; None where nothing has, or the task was cancelled.

    The task lets go of the traceback, which leads to frames that may hold the task: no cycle is
    left once the caller lets go of it too.
    """
    try:
        task.result()  # `exception` would leave the traceback with the task.
    except asyncio.CancelledError:
        return None
    except BaseException as error:  # the caller's, whatever it is
        return error
    return None


def run_first_step(
    coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
) -> Any | Rest:
    """Return the coroutine's result if it is done without waiting, else its `Rest`.

    An error of its first step is raised here. Not to be called from within a task.
    """
    stand_in = _StandIn()
    _enter_task(loop, stand_in)  # type: ignore[arg-type]  # a stand-in for a task, by intent
    try:
        awaited = coroutine.send(None)
    except StopIteration as done:
        return done.value
    finally:
        _leave_task(loop, stand_in)  # type: ignore[arg-type]  # as above
    return Rest(coroutine, awaited, stand_in)
