"""How much memory requests may hold, over all connections.

Two accounts. *In flight*: complete requests that are worked on or wait for their turn; they end by
themselves, so whoever is over the limit waits for that. *Partial*: requests still being received;
they end only when their client sends the rest, so over the limit one connection at a time may go
on, whoever is quickest to make progress, and a peer that announces much and sends little starves
nobody but itself. A connection's small requests never are partial for long: they need none of it.
"""

from __future__ import annotations

from typing import Protocol


class Receiver(Protocol):
    """A connection, as the accounts see it."""

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

    def take(self, size_bytes: int) -> None:
        """Account for a request that is complete now."""
        self.in_flight_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Account for a request that is done with."""
        self.in_flight_bytes -= size_bytes
        if self._waiting:
            self._wake()

    def resize_partial(self, by_bytes: int) -> None:
        """Account for a buffer of a half-received request that grew, or went (negative)."""
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
            self.pass_on()

    def pass_on(self) -> None:
        """Let another one go on: the favoured one has finished, gone or sent nothing lately."""
        self._favoured = None
        if self._waiting:
            self._wake()

    def _may_go_on(self, receiver: Receiver) -> bool:
        if self.partial_bytes <= self.limit_bytes:
            return True
        if self._favoured is None:
            self._favoured = receiver
        return self._favoured is receiver

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for receiver in waiting:
            receiver.resume_memory()
