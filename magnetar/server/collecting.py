"""Keeps Python's garbage collection short: it is put off beside large requests, and what lives
long is looked at once.

A request that names 100,000 partitions makes a million objects. They hold no cycles, and are freed
when the request is answered. But a full collection before that looks at all of them, which holds
the event loop for a third of a second. So no collection begins meanwhile, for at most five seconds.
After such a pause the collector runs for at least as long before it is put off again.

A broker with much state has millions of objects: topics, groups, offsets, sessions. Clients choose
how many. Each full collection would look at all of them again, for a second and more. So what a
collection leaves is frozen, unless that one was of the youngest alone: later ones pass over it. It
is freed as ever when its last reference goes. Only a cycle among frozen objects would stay for
ever. So no request, connection or topic may leave one (tests/magnetar/server/test_cycles.py).
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time

#: The longest time without a collection.
PUT_OFF_S = 5.0
#: From the end of a large request to the next collection. By then the answer has left, and the
#: request's objects are freed: a collection that still found them would hold the loop as long.
FREED_AFTER_S = 0.05
#: A collection that takes so long, in CPU time, has looked at some ten thousand objects.
LONG_S = 0.001
#: So many new objects since the last collection are no garbage: they are looked at no more.
LIVING_MIN = 20_000


class _Freezer:
    """Told of each collection: freezes what a long one has left."""

    began_s = 0.0

    def __call__(self, phase: str, told: dict[str, int]) -> None:
        if told["generation"] == _YOUNGEST:
            return
        if phase == "start":
            self.began_s = thread_time()
        elif thread_time() - self.began_s >= LONG_S:
            gc.freeze()


_YOUNGEST = 0
_freezer = _Freezer()


def look_once() -> None:
    """Freeze from now on what lives long. For a process that is a broker, and nothing else."""
    if _freezer not in gc.callbacks:
        gc.callbacks.append(_freezer)


class Collector:
    """The collector of a process with one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: How many large requests are handled now.
        self._handled = 0
        self._timer: asyncio.TimerHandle | None = None
        self._off_at_s = 0.0
        self._may_be_off_from_s = 0.0

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Put off collections in the block, unless they were put off for too long already."""
        self._handled += 1
        now_s = self._loop.time()
        # If other code has turned the collector off, that code turns it on again.
        if self._timer is None and now_s >= self._may_be_off_from_s and gc.isenabled():
            gc.disable()
            self._off_at_s = now_s
            self._timer = self._loop.call_later(PUT_OFF_S, self._resume)
        try:
            yield
        finally:
            self._handled -= 1
            if not self._handled and self._timer is not None:
                self._timer.cancel()
                self._timer = self._loop.call_later(FREED_AFTER_S, self._resume)

    def close(self) -> None:
        """Let the process collect again, since its event loop ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._resume()

    def _resume(self) -> None:
        self._timer = None
        # What is left of the pause lives: a large request that goes on, or what it has made.
        if _freezer in gc.callbacks and gc.get_count()[0] >= LIVING_MIN:
            gc.freeze()
        gc.enable()
        now_s = self._loop.time()
        self._may_be_off_from_s = now_s + (now_s - self._off_at_s)
