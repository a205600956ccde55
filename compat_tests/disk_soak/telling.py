"""What writers and readers of the bulk topic tell: runs of numbers, a few times a second."""

from __future__ import annotations

import threading
import time

from compat_tests.disk_soak.numbers import Numbers
from compat_tests.disk_soak.record import parse
from compat_tests.pipeline.telling import tell

_RUNS_PER_LINE = 40
_TOLD_EVERY_S = 0.5


class Acknowledged:
    """Tells what was acknowledged to a producer. Any thread may note."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._numbers = Numbers()
        self._guard = threading.Lock()
        self._told_at = 0.0
        self.count = 0
        tell("stream", stream=stream)

    def note(self, number: int) -> None:
        with self._guard:
            self._numbers.add(number, number + 1)
            self.count += 1

    def tell_now_and_then(self) -> None:
        if time.monotonic() - self._told_at < _TOLD_EVERY_S:
            return
        self._told_at = time.monotonic()
        with self._guard:
            runs, self._numbers = list(self._numbers), Numbers()
        for start in range(0, max(1, len(runs)), _RUNS_PER_LINE):
            told = runs[start : start + _RUNS_PER_LINE]
            tell("acknowledged", stream=self._stream, runs=told)


class Reading:
    """Tells what a reader finds: runs of the numbers of a stream, in the order of the partition."""

    def __init__(self) -> None:
        self._runs: list[tuple[str, int, int]] = []
        self._told_at = 0.0

    def found(self, place: str, value: bytes) -> None:
        bulk = parse(value)
        if bulk is None:
            tell("torn", where=place)
            return
        if self._runs:
            stream, first, end = self._runs[-1]
            if (stream, end) == bulk:
                self._runs[-1] = stream, first, end + 1
                return
        self._runs.append((bulk.stream, bulk.number, bulk.number + 1))

    def tell_now_and_then(self) -> None:
        if time.monotonic() - self._told_at < _TOLD_EVERY_S:
            return
        self._told_at = time.monotonic()
        runs, self._runs = self._runs, []
        for start in range(0, max(1, len(runs)), _RUNS_PER_LINE):
            tell("read", runs=runs[start : start + _RUNS_PER_LINE])
