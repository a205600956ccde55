"""How much memory requests may hold, over all connections.

Two accounts. *In flight*: requests that are worked on; they end by themselves, so whoever is over
the limit waits for that. *Partial*: requests still being received, or behind another one of their
connection; when these end is up to their client, so over the limit one connection at a time, the
favoured, may go on, and has to be quick: `overdue` says who is not. So a peer that announces much
and sends little delays large requests for a moment and small ones not at all.
"""

from __future__ import annotations

from typing import Protocol

#: What the favoured connection has to send from one sweep to the next.
PROGRESS_BYTES_MIN = 64 * 1024


class Receiver(Protocol):
    """A connection, as the accounts see it."""

    @property
    def received_bytes(self) -> int:
        """What it has received, ever."""
        ...

    def resume_memory(self) -> None:
        """Try again to read."""
        ...


class RequestMemory:
    """The accounts. `limit_bytes` is for each of the two; negative: no limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.in_flight_bytes = 0
        self.partial_bytes = 0
        self._waiting: dict[Receiver, None] = {}
        self._favoured: Receiver | None = None
        self._favoured_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Account for a request that is begun."""
        self.in_flight_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Account for a request that is done with."""
        self.in_flight_bytes -= size_bytes
        if self._waiting:
            self._wake()

    def resize_partial(self, by_bytes: int) -> None:
        """Account for a buffer of a half-received request, or one behind others, that grew or
        came, or went (negative)."""
        self.partial_bytes += by_bytes
        if by_bytes < 0 and self._waiting:
            self._wake()

    def may_read(self, receiver: Receiver, *, is_partial: bool) -> bool:
        """Whether `receiver` may read on; if not it is told when to try again."""
        if self.limit_bytes < 0:
            return True
        if self.in_flight_bytes > self.limit_bytes or (
            is_partial and not self._may_go_on(receiver)
        ):
            self._waiting[receiver] = None
            return False
        return True

    def forget(self, receiver: Receiver) -> None:
        """A connection has gone; what it held was given back."""
        self._waiting.pop(receiver, None)
        if self._favoured is receiver:
            self._favoured = None
            self._wake()

    def overdue(self) -> Receiver | None:
        """Return the favoured connection if it got little done since this was last asked.

        It is to be closed: others wait for the memory.
        """
        favoured = self._favoured
        if favoured is None or self.partial_bytes <= self.limit_bytes:
            self._favoured = None
            return None
        received = favoured.received_bytes
        is_overdue = received - self._favoured_bytes < PROGRESS_BYTES_MIN
        self._favoured_bytes = received
        return favoured if is_overdue else None

    def _may_go_on(self, receiver: Receiver) -> bool:
        if self.partial_bytes <= self.limit_bytes:
            return True
        if self._favoured is None:
            self._favoured = receiver
            self._favoured_bytes = receiver.received_bytes - PROGRESS_BYTES_MIN
        return self._favoured is receiver

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for receiver in waiting:
            receiver.resume_memory()
