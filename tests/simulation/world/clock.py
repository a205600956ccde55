"""The clocks of a simulated machine: the steady one follows time, the wall clock may be set."""

from __future__ import annotations

from tests.simulation.world.process import Scheduler

START_MS = 1_700_000_000_000


class WallClock:
    """The time that the machine shows. A history may set it ahead."""

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
