"""`magnetar serve` that writes down each long turn of its event loop: its CPU time and its work.

    python -m benchmarks.watched_broker FILE serve ...

Appends a line to FILE for each turn of more than `TOLD_FROM_MS`: milliseconds of CPU of the loop's
thread, then the slowest callback of the turn. CPU time, unlike a round trip, does not grow with
other work on the machine. The loop is asyncio's own, since uvloop's turns cannot be seen.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.base_events import BaseEventLoop
from asyncio.events import Handle
from typing import IO, Any

from magnetar.cli import broker_process
from magnetar.cli.main import main

TOLD_FROM_MS = 1.0


def _name(handle: Any) -> str:
    """Return whose callback it is: of a task, the coroutine."""
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    named = owner.get_coro() if isinstance(owner, asyncio.Task) else callback
    return str(getattr(named, "__qualname__", repr(named)))


def watch(told: IO[str]) -> None:
    """Measure every turn of every event loop of asyncio's that this process runs from now on."""
    run_handle, run_turn = vars(Handle)["_run"], vars(BaseEventLoop)["_run_once"]
    slowest_s, slowest = 0.0, ""

    def measured_handle(handle: Any) -> None:
        nonlocal slowest_s, slowest
        began_s = time.thread_time()
        run_handle(handle)
        took_s = time.thread_time() - began_s
        if took_s > slowest_s:
            slowest_s, slowest = took_s, _name(handle)

    def measured_turn(loop: Any) -> None:
        nonlocal slowest_s, slowest
        slowest_s, slowest = 0.0, ""
        began_s = time.thread_time()
        run_turn(loop)
        took_ms = (time.thread_time() - began_s) * 1000
        if took_ms >= TOLD_FROM_MS:
            told.write(f"{took_ms:.1f} {slowest_s * 1000:.1f} {slowest}\n")

    # Private names: asyncio has no public hook.
    any_handle: Any = Handle
    any_handle._run = measured_handle
    any_loop: Any = BaseEventLoop
    any_loop._run_once = measured_turn
    any_process: Any = broker_process
    any_process._event_loop = asyncio.new_event_loop


if __name__ == "__main__":
    with open(sys.argv[1], "a", buffering=1) as told:
        watch(told)
        del sys.argv[1]
        sys.exit(main())
