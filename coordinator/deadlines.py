"""The next deadline among many, with at most a few entries per key however often it moves.

A deadline that moved later is noticed when the old entry comes up, so begins and ends of short
transactions cost nothing here. Pure: the caller says what time it is.
"""

from __future__ import annotations

import heapq


class Deadlines:
    """Keys by the time at which each should be looked at again. May say a key too early, never
    late."""

    __slots__ = ("_due_ms", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._due_ms: dict[str, int] = {}

    def schedule(self, key: str, due_ms: int) -> None:
        """Let `key` come up at `due_ms` or before."""
        known_ms = self._due_ms.get(key)
        if known_ms is None or due_ms < known_ms:
            self._due_ms[key] = due_ms
            heapq.heappush(self._heap, (due_ms, key))

    def next_ms(self) -> int | None:
        """Return when to call `take_due` next, None if nothing is scheduled."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int, limit: int | None = None) -> list[str]:
        """Remove and return the keys to look at, at most `limit`, the oldest first.

        The caller schedules those again that are not due yet. What is above the limit stays due.
        """
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) != limit:
            due_ms, key = heapq.heappop(self._heap)
            if self._due_ms.get(key) == due_ms:
                del self._due_ms[key]
                due.append(key)
        return due
