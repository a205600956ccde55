"""Kills that are spread over the progress of a run, and their victims."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from magnetar.testing import BrokerProcess

#: In the command lines of the processes that run Python for Spark's tasks.
_PYTHON_WORKER = b"pyspark.daemon"

_LOOKS = 100
_BETWEEN_LOOKS_S = 0.02


class Kill(NamedTuple):
    """A kill: of what, and when, in seconds of the monotonic clock."""

    at: float
    victim: str


class Killer:
    """Kills `kills`, names of `victims`, one after the other, spread evenly over the progress."""

    def __init__(self, victims: Mapping[str, Callable[[], None]], kills: Sequence[str]) -> None:
        self.killed: list[Kill] = []
        self._victims = victims
        self._points = [(n + 1) / (len(kills) + 1) for n in range(len(kills))]
        self._kills = list(kills)

    def at(self, progress: float) -> None:
        """Kill what is due at this progress of the run, 0 to 1."""
        while self._points and progress >= self._points[0]:
            self._points.pop(0)
            victim = self._kills.pop(0)
            self.killed.append(Kill(time.monotonic(), victim))
            self._victims[victim]()

    @property
    def is_done(self) -> bool:
        return not self._kills


def kill_broker(broker: BrokerProcess, report: Callable[[str], None]) -> None:
    """Kill the broker with SIGKILL, and start it again on the same port and data."""
    broker.kill()
    began_at = time.monotonic()
    broker.start()
    report(f"kill -9 broker; it serves again after {(time.monotonic() - began_at) * 1000:.0f} ms")


def kill_task(ancestor: int, report: Callable[[str], None]) -> bool:
    """Kill a process that runs a task of Spark in Python; return False if there is none.

    `ancestor` is the process that started Spark, or Spark itself.
    """
    parents = dict(_parents())
    workers = [
        pid
        for pid in parents
        if _runs_python(pid) and _runs_python(parents[pid]) and ancestor in _ancestors(pid, parents)
    ]
    if not workers:
        return False
    pid = random.choice(workers)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    report("kill -9 a task of Spark's")
    return True


def kill_task_when_there_is_one(ancestor: int, report: Callable[[str], None]) -> None:
    """Kill a task soon: some sinks run tasks in Python for moments only."""
    for _ in range(_LOOKS):
        if kill_task(ancestor, report):
            return
        time.sleep(_BETWEEN_LOOKS_S)


def _parents() -> Iterator[tuple[int, int]]:
    """Yield (process id, its parent's) of all processes."""
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                status = (directory / "stat").read_text()
            except OSError:
                continue  # It ended meanwhile.
            yield int(directory.name), int(status.rsplit(") ", 1)[1].split()[1])


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


def _runs_python(pid: int) -> bool:
    """Return whether the process is Spark's daemon, or a worker that the daemon forked."""
    try:
        return _PYTHON_WORKER in (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
