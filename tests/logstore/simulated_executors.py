"""Where syncs run in simulations and tests: on the one thread, when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from logstore.disk.files import File
from logstore.sync.sync_executors import Done, failure_of


class SimulatedExecutor:
    """For simulations and tests: each thing is done when `_later` says so, on one thread."""

    def _later(self, callback: Callable[[], None]) -> None:
        """Call back later, on this thread: when is what kinds of simulation differ in."""
        raise NotImplementedError

    def sync(self, file: File, done: Done) -> bool:
        self.submit(file.sync, done)
        return True

    def submit(self, work: Callable[[], None], done: Done) -> None:
        def perform() -> None:
            failure = failure_of(work)
            self._later(lambda: done(failure))

        self._later(perform)


class SteppedExecutor(SimulatedExecutor):
    """Nothing happens but by `step`."""

    def __init__(self) -> None:
        self._steps: deque[Callable[[], None]] = deque()

    @property
    def pending(self) -> int:
        """How many steps are due."""
        return len(self._steps)

    def _later(self, callback: Callable[[], None]) -> None:
        self._steps.append(callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._later(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._later(callback)

    def step(self) -> bool:
        """Do the next thing: begin a sync, perform it, or complete it. False: nothing was due."""
        if not self._steps:
            return False
        self._steps.popleft()()
        return True

    def run(self) -> None:
        """Step until nothing is due: everything appended is durable then."""
        while self.step():
            pass

    def close(self) -> None:
        self._steps.clear()
