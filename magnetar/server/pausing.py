"""Why a connection is not read: the reasons as bits, and the one that ends with time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pause:
    """Bits, each a reason why nothing is read. Reading goes on when none is set.

    Plain integers: an IntFlag's operators are functions, called a dozen times for each request.
    """

    NONE = 0
    UNANSWERED = 1
    UNREAD_ANSWERS = 2
    MEMORY = 4
    CLOSING = 8
    TURN = 16
    #: A quota: what the client has sent before is answered, also behind the throttled request.
    MUTED = 32
    #: Nothing comes any more. What had arrived is not done yet.
    GONE = 64


class Mute:
    """How long a connection is muted: the latest end that was asked for counts."""

    __slots__ = ("_ends_at_s", "_loop", "_on_end", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._ends_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def extend(self, pause_ms: int) -> None:
        """Call `on_end` after `pause_ms`, unless it is called later anyway."""
        ends_at_s = self._loop.time() + pause_ms / 1000
        if self._timer is not None:
            if ends_at_s <= self._ends_at_s:
                return
            self._timer.cancel()
        self._ends_at_s = ends_at_s
        self._timer = self._loop.call_at(ends_at_s, self.end)

    def end(self) -> None:
        """Call `on_end` now."""
        self.cancel()
        self._on_end()

    def cancel(self) -> None:
        """Do not call `on_end`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
