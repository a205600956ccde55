"""Running a coroutine up to its first wait without making a task of it.

Most requests are answered without waiting; a task for each costs more than the handler. So the
first step runs at once, in the caller's, and only what waits goes on as a task. During the first
step `asyncio.current_task()` is a stand-in, which hands `cancel` on to that task: asyncio.timeout
and TaskGroup work in it. Source: the asyncio documentation, "Extending", task lifetime support.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # documented, though underscored: see above
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _StandIn:
    """What the first step takes for its task."""

    task: asyncio.Task[Any] | None = None

    def cancel(self, message: object = None) -> bool:
        return self.task is not None and self.task.cancel(message)

    def cancelling(self) -> int:
        return 0 if self.task is None else self.task.cancelling()

    def uncancel(self) -> int:
        return 0 if self.task is None else self.task.uncancel()


class _Rest(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine that was stepped once: gives again what that step awaits, then goes on."""

    __slots__ = ("_awaited", "_coroutine", "_is_begun")

    def __init__(self, coroutine: Coroutine[Any, Any, T], awaited: object) -> None:
        self._coroutine = coroutine
        self._awaited = awaited
        self._is_begun = False

    def send(self, value: Any, /) -> Any:
        if self._is_begun:
            return self._coroutine.send(value)
        self._is_begun = True
        awaited, self._awaited = self._awaited, None
        return awaited

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
        /,
    ) -> Any:
        self._is_begun = True
        error = (
            kind if isinstance(kind, BaseException) else kind(*(() if value is None else (value,)))
        )
        return self._coroutine.throw(error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()


def run_first_step(
    coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop
) -> tuple[T, None] | tuple[None, asyncio.Task[T]]:
    """Return (result, None) if the coroutine is done without waiting, else (None, its task).

    What it raises in its first step is raised here. Not to be called from within a task.
    """
    stand_in = _StandIn()
    _enter_task(loop, stand_in)  # type: ignore[arg-type]  # a stand-in for a task, by intent
    try:
        awaited = coroutine.send(None)
    except StopIteration as done:
        return done.value, None
    finally:
        _leave_task(loop, stand_in)  # type: ignore[arg-type]  # as above
    stand_in.task = asyncio.Task(_Rest(coroutine, awaited), loop=loop)
    return None, stand_in.task
