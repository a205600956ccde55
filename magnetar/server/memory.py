"""How much memory requests may hold, over all connections.

Two accounts. *In flight*: requests that are worked on; they end by themselves, so whoever is over
the limit waits for that. *Partial*: requests still being received, or behind another one of their
connection; when these end is up to their client, so over the limit one connection at a time, the
favoured, may go on until it has no such request, and has to be quick: `overdue` says who is not. So
a peer that announces much and sends little delays large requests for a moment and small ones not at
all.
"""

from __future__ import annotations

import sys
from typing import Protocol

#: What the favoured connection has to send from one sweep to the next.
PROGRESS_BYTES_MIN = 64 * 1024


class Receiver(Protocol):
    """A connection, as the accounts see it."""

    @property
    def received_bytes(self) -> int:
        """What it has received, ever."""
        ...

    @property
    def is_partial(self) -> bool:
        """Whether it has a request that is not there whole, or behind another one."""
        ...

    def resume_memory(self) -> None:
        """Try again to read."""
        ...


class RequestMemory:
    """The accounts. `limit_bytes` is for each of the two; negative: no limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = sys.maxsize if limit_bytes < 0 else limit_bytes
        #: A request that begins to wait is added here; `give_back` takes it away.
        self.in_flight_bytes = 0
        #: Changed by `resize_partial` only.
        self.partial_bytes = 0
        self._waiting: dict[Receiver, None] = {}
        self._favoured: Receiver | None = None
        self._favoured_bytes = 0

    def give_back(self, size_bytes: int) -> None:
        """Account for a request that is in flight no more."""
        self.in_flight_bytes -= size_bytes
        if self._waiting:
            self._wake()

    def resize_partial(self, by_bytes: int) -> None:
        """Account for a buffer of a half-received request, or one behind others, that grew or
        came, or went (negative)."""
        self.partial_bytes += by_bytes
        if by_bytes < 0 and self._waiting:
            self._wake()

    def may_read(self, receiver: Receiver) -> bool:
        """Whether `receiver` may read on; if not it is told when to try again."""
        limit_bytes = self.limit_bytes
        if self.in_flight_bytes <= limit_bytes and (
            self.partial_bytes <= limit_bytes
            or not receiver.is_partial
            or self._is_favoured(receiver)
        ):
            return True
        self._waiting[receiver] = None
        return False

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
        if not favoured.is_partial:
            # It has done what it was let do, and owes nothing; it is the next one's turn.
            self._favoured = None
            self._wake()
            return None
        if favoured in self._waiting:
            # For requests in flight: not its fault.
            self._begin_to_count(favoured)
            return None
        received = favoured.received_bytes
        is_overdue = received - self._favoured_bytes < PROGRESS_BYTES_MIN
        self._favoured_bytes = received
        return favoured if is_overdue else None

    def _is_favoured(self, receiver: Receiver) -> bool:
        if self._favoured is None or not self._favoured.is_partial:
            self._favoured = receiver
            self._begin_to_count(receiver)
        return self._favoured is receiver

    def _begin_to_count(self, favoured: Receiver) -> None:
        """It has all of the time between the next two sweeps."""
        self._favoured_bytes = favoured.received_bytes - PROGRESS_BYTES_MIN

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for receiver in waiting:
            receiver.resume_memory()
