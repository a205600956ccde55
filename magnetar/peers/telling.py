"""What is said once, however often it happens: a peer that is set up wrongly tries for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

_AGAIN_S = 60.0
#: A stranger may come from any number of addresses.
_KNOWN_MAX = 256


class News:
    """Remembers what was said in the last minute."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        #: When each was said, the oldest first.
        self._said: dict[tuple[str, ...], float] = {}

    def is_new(self, *what: str) -> bool:
        """Return whether this is to be said now."""
        now_s = self._now_s()
        said_s = self._said.get(what)
        if said_s is not None and now_s - said_s < _AGAIN_S:
            return False
        self._said.pop(what, None)
        if len(self._said) >= _KNOWN_MAX:
            del self._said[next(iter(self._said))]
        self._said[what] = now_s
        return True
