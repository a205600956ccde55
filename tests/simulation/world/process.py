"""Simulated time, and the processes that live in it, each with an event loop of its own.

A process takes turns: one turn runs every callback that was ready when it began, and takes some
microseconds. Time passes to the next timer when no process is ready. A process that ends runs
nothing more: no callback, no `finally`, no timer, as after `kill -9`. A stopped process (SIGSTOP, a
suspended machine) finds its timers late when it goes on. Work for threads is done at one random
later step and its result known at another. All chance comes from the seed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from itertools import count
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack

from tests.logstore.simulated_disk import PowerLost

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: What a turn of an event loop takes.
_TURN_S = (0.000_005, 0.000_02, 0.000_1)
#: What a thread takes before it does its work, and until the loop hears of it.
_THREAD_S = (0.0, 0.000_05, 0.000_5, 0.005, 0.05)
#: More turns than any history takes: something spins.
TURNS_MAX = 2_000_000


class ProcessEnded(BaseException):
    """The process that runs this has ended: nothing after it is executed."""


class Stuck(AssertionError):
    """Every process waits for something that never happens, or one of them never waits."""


class Scheduler:
    """The time, and whose turn it is."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_s = 0.0
        self.turns = 0
        self.processes: list[Process] = []
        #: Of processes that have ended: not even the garbage collector may run what they left.
        self.graveyard: list[object] = []

    def run(self, process: Process, work: Coroutine[Any, Any, T]) -> T:
        """Run all processes until `work` of one of them is done; return its result."""
        task = process.spawn(work)
        while not task.done():
            self._turn()
        return task.result()

    def end(self) -> None:
        """End every process."""
        for process in tuple(self.processes):
            process.end()

    def _turn(self) -> None:
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise Stuck(f"{TURNS_MAX} turns, and no end")
        able = [each for each in self.processes if each.may_run(self.now_s)]
        if not able:
            self.now_s = max(self.now_s, min(each.next_s for each in self.processes))
            if self.now_s == float("inf"):
                raise Stuck("every process waits, and nothing will ever happen")
            return
        chosen = able[0] if len(able) == 1 else self.random.choice(able)
        chosen.turn()
        self.now_s += self.random.choice(_TURN_S)


class Process(asyncio.BaseEventLoop):
    """One process: its event loop, and its threads."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.is_alive = True
        super().__init__()
        self._scheduler = scheduler
        self._random = random
        self._due: deque[asyncio.Handle] = deque()
        self._later: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
        self._handler = None
        self._stopped_until_s = 0.0
        #: Called when the process ends, in that step.
        self.on_end: list[Callable[[], None]] = []
        scheduler.processes.append(self)

    # Its life.

    def end(self) -> None:
        """Run nothing more, from this step on."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._scheduler.processes.remove(self)
        self._scheduler.graveyard += [asyncio.all_tasks(self), self._due, self._later, self]
        self._due, self._later = deque(), []
        for on_end in self.on_end:
            on_end()

    def stop_for(self, seconds: float) -> None:
        """Stop the process for that time: the scheduler gives it no turn, whatever is due."""
        self._stopped_until_s = self._scheduler.now_s + seconds

    def may_run(self, now_s: float) -> bool:
        """Whether the process has something to do now."""
        if now_s < self._stopped_until_s:
            return False
        return bool(self._due) or self._next_timer_s() <= now_s

    @property
    def next_s(self) -> float:
        """When it has something to do, if nothing happens to it before."""
        due_s = 0.0 if self._due else self._next_timer_s()
        return max(due_s, self._stopped_until_s) if due_s < float("inf") else due_s

    def _next_timer_s(self) -> float:
        timers = self._later
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][0] if timers else float("inf")

    def turn(self) -> None:
        """Run what is ready now, and the timers that are due."""
        now_s = self._scheduler.now_s
        while self._next_timer_s() <= now_s:
            self._due.append(heapq.heappop(self._later)[2])
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(self._due)):
                handle = self._due.popleft()
                if not handle.cancelled():
                    handle._run()
                if not self.is_alive:
                    return
        except ProcessEnded:
            assert not self.is_alive
        finally:
            asyncio._set_running_loop(None)

    # An event loop, as asyncio and the broker use it.

    def time(self) -> float:
        return self._scheduler.now_s

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.is_alive:
            self._due.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if self.is_alive:
            heapq.heappush(self._later, (when, next(self._numbers), timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, context=context)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin `work` in this process, from outside of it."""
        return self.create_task(work)

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        self.in_thread(partial(func, *args), partial(_complete, done))
        return done

    def in_thread(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Do `work` at one later step, and tell its result, or its error, at another."""

        def perform() -> None:
            result, failure = None, None
            try:
                result = work()
            except PowerLost:
                return
            except Exception as error:
                failure = error
            self.call_later(self._random.choice(_THREAD_S), done, result, failure)

        self.call_later(self._random.choice(_THREAD_S), perform)

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        self._handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_alive:
            return
        if self._handler is not None:
            self._handler(self, context)
        else:
            raise context.get("exception") or AssertionError(context["message"])

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return not self.is_alive

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""


def _complete(done: asyncio.Future[T], result: T | None, failure: BaseException | None) -> None:
    if done.cancelled():
        return
    if failure is None:
        done.set_result(result)  # type: ignore[arg-type]  # None is a T where work returns None
    else:
        done.set_exception(failure)
