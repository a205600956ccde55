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
from contextvars import Context, copy_context
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
_NEVER_S = float("inf")


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
        #: Whose event loop asyncio takes for the running one: to tell it costs two system calls.
        self._running: Process | None = None
        self.processes: list[Process] = []
        #: Of processes that have ended: not even the garbage collector may run what they left. With
        #: the history itself among it, nothing is taken to pieces at its end.
        self.graveyard: list[object] = []

    def run(self, process: Process, work: Coroutine[Any, Any, T]) -> T:
        """Run all processes until `work` of one of them is done; return its result."""
        task = process.spawn(work)
        try:
            while not task.done():
                self._turn()
        finally:
            self._running = None
            asyncio._set_running_loop(None)
        return task.result()

    def end(self) -> None:
        """End every process."""
        for process in tuple(self.processes):
            process.end()

    def _turn(self) -> None:
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise Stuck(f"{TURNS_MAX} turns, and no end")
        while not (able := self._able()):
            self.now_s = max(self.now_s, min(each.next_s for each in self.processes))
            if self.now_s == _NEVER_S:
                raise Stuck("every process waits, and nothing will ever happen")
        chosen = able[0] if len(able) == 1 else able[self._draw(len(able))]
        if chosen is not self._running:
            self._running = chosen
            asyncio._set_running_loop(chosen)
        chosen.turn(self.now_s)
        self.now_s += _TURN_S[self._draw(len(_TURN_S))]

    def _draw(self, count: int) -> int:
        """Return a number below `count`: what `random.choice` draws, with a third of its calls."""
        getrandbits, bits = self.random.getrandbits, count.bit_length()
        drawn = getrandbits(bits)
        while drawn >= count:
            drawn = getrandbits(bits)
        return drawn

    def _able(self) -> list[Process]:
        """Return the processes that have something to do now."""
        now_s = self.now_s
        return [
            each
            for each in self.processes
            if (each.due or each.timer_s <= now_s) and now_s >= each.stopped_until_s
        ]


class _Call(asyncio.TimerHandle):
    """A callback that waits for its turn, or for its time.

    asyncio's own handles look for a debugger each time, and take three times as long to make.
    """

    __slots__ = ("args", "callback", "context", "is_cancelled", "process", "when_s")

    def __init__(
        self,
        callback: Callable[..., object] | None,
        args: tuple[object, ...],
        process: Process,
        context: Context | None,
        when_s: float = 0.0,
    ) -> None:
        self.callback = callback
        self.args = args
        self.process = process
        self.context = copy_context() if context is None else context
        self.when_s = when_s
        self.is_cancelled = False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            # What it would have held alive ends here, as with asyncio's own.
            self.callback, self.args = None, ()
            self.process.on_cancelled(self)

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s

    def __repr__(self) -> str:
        return f"<call of {self.callback} at {self.when_s}>"


class Process(asyncio.BaseEventLoop):
    """One process: its event loop, and its threads."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.is_alive = True
        super().__init__()
        self._scheduler = scheduler
        self._random = random
        #: What is ready.
        self.due: deque[_Call] = deque()
        self._later: list[tuple[float, int, _Call]] = []
        #: When the first timer is due that is not cancelled.
        self.timer_s = _NEVER_S
        self._numbers = count()
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
        self._handler = None
        #: Until then the process has no turn, whatever is due.
        self.stopped_until_s = 0.0
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
        self._scheduler.graveyard += [asyncio.all_tasks(self), self.due, self._later, self]
        self.due, self._later, self.timer_s = deque(), [], _NEVER_S
        for on_end in self.on_end:
            on_end()

    def stop_for(self, seconds: float) -> None:
        """Stop the process for that time: the scheduler gives it no turn, whatever is due."""
        self.stopped_until_s = self._scheduler.now_s + seconds

    @property
    def next_s(self) -> float:
        """When it has something to do, if nothing happens to it before."""
        due_s = 0.0 if self.due else self.timer_s
        return max(due_s, self.stopped_until_s) if due_s < _NEVER_S else due_s

    def on_cancelled(self, call: _Call) -> None:
        """Cancelled timers are dropped when their time comes; the next one may be another now."""
        if call.when_s == self.timer_s:
            self._look_at_timers()

    def _look_at_timers(self) -> None:
        timers = self._later
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        self.timer_s = timers[0][0] if timers else _NEVER_S

    def turn(self, now_s: float) -> None:
        """Run what is ready now, and the timers that are due. The caller has said what runs."""
        due = self.due
        while self.timer_s <= now_s:
            due.append(heapq.heappop(self._later)[2])
            self._look_at_timers()
        for _ in range(len(due)):
            call = due.popleft()
            callback = call.callback
            if callback is not None:
                try:
                    call.context.run(callback, *call.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._failed(call, error)
            if not self.is_alive:
                return

    def _failed(self, call: _Call, error: BaseException) -> None:
        context = {"message": f"Exception in {call}", "exception": error, "handle": call}
        try:
            self.call_exception_handler(context)
        except ProcessEnded:
            assert not self.is_alive

    # An event loop, as asyncio and the broker use it.

    def time(self) -> float:
        return self._scheduler.now_s

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        call = _Call(callback, args, self, context)
        if self.is_alive:
            self.due.append(call)
        return call

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Call(callback, args, self, context, when)
        if self.is_alive:
            heapq.heappush(self._later, (when, next(self._numbers), timer))
            if when < self.timer_s:
                self.timer_s = when
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._scheduler.now_s + delay, callback, *args, context=context)

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


def _complete(done: asyncio.Future[T], result: T | None, failure: BaseException | None) -> None:
    if done.cancelled():
        return
    if failure is None:
        done.set_result(result)  # type: ignore[arg-type]  # None is a T where work returns None
    else:
        done.set_exception(failure)
