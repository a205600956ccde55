"""The clocks of a simulated machine: the steady one follows time, the wall clock may be set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from magnetar.runtime import cleaning, turn
from tests.simulation.world.process import Scheduler

START_MS = 1_700_000_000_000
#: The longest turns of the broker end after dozens of looks.
_LOOK_S = 0.000_05


class WallClock:
    """What the machine shows; somebody may set it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ahead_ms = 0

    def set_ahead(self, by_ms: int) -> None:
        """Let the clock be wrong by so much from now on."""
        self._ahead_ms = by_ms

    def now_ms(self) -> int:
        return START_MS + int(self._scheduler.now_s * 1000) + self._ahead_ms


class ProcessClock:
    """The time as one broker process reads it."""

    def __init__(self, scheduler: Scheduler, wall: WallClock) -> None:
        self._scheduler = scheduler
        self._wall = wall
        self._began_ms = wall.now_ms() - self._elapsed_ms()

    def now_ms(self) -> int:
        return self._wall.now_ms()

    def steady_ms(self) -> int:
        return self._began_ms + self._elapsed_ms()

    def _elapsed_ms(self) -> int:
        return int(self._scheduler.now_s * 1000)


class WorkingTime:
    """The time that work takes, as the broker measures it: a little for each look at it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._looks = 0

    def __call__(self) -> float:
        self._looks += 1
        return self._scheduler.now_s + self._looks * _LOOK_S


@contextmanager
def simulated_work(worked: WorkingTime) -> Iterator[None]:
    """Let slices of work end by `worked`, and no thread sleep in between."""
    # Any: the modules' own names of the standard library's clock are replaced.
    of_turns: Any = turn
    of_cleaner: Any = cleaning
    real = of_turns.perf_counter, of_cleaner.time
    of_turns.perf_counter = worked
    of_cleaner.time = SimpleNamespace(perf_counter=worked, sleep=lambda _: None)
    try:
        yield
    finally:
        of_turns.perf_counter, of_cleaner.time = real
