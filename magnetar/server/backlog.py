"""Requests of one connection that have arrived and not begun, with their place in the memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from magnetar.server.frames import Frame
from magnetar.server.memory import RequestMemory
from magnetar.server.route import OVERLAPPING_BYTES


class Backlog(deque[Frame]):
    """In the order in which they arrived. To be changed by its own methods alone."""

    __slots__ = ("_memory",)

    def __init__(self, memory: RequestMemory) -> None:
        super().__init__()
        self._memory = memory

    @property
    def size_bytes(self) -> int:
        """What the requests hold."""
        return sum(map(len, self))

    def add(self, frames: Sequence[Frame]) -> None:
        """Put requests behind those that wait."""
        self._memory.resize_partial(sum(map(len, frames)))
        self.extend(frames)

    def take(self) -> Frame:
        """Remove and return the first request."""
        frame = self.popleft()
        self._memory.resize_partial(-len(frame))
        return frame

    def drop_unheard(self) -> None:
        """Forget what does not append: its client has gone, and hears no answer."""
        others = [frame for frame in self if bytes(frame[:2]) in OVERLAPPING_BYTES]
        self.drop()
        self.add(others)

    def drop(self) -> None:
        """Forget all requests."""
        dropped_bytes = self.size_bytes
        self.clear()
        self._memory.resize_partial(-dropped_bytes)
