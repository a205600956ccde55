"""The memory that requests hold, over all connections, in three accounts with one limit each.

They are apart because different parties end what they hold: the disk, a client that sends, a client
that waits. In one account a client that waits could stop all others.

*In flight*: requests that wait for a sync. They end by themselves, so over the limit every
connection waits for that.

*Partial*: requests that are still arriving, or stand behind another one of their connection. Their
clients decide when these end. So over the limit one connection at a time, the favoured one, may
read on until it has no such request, and it has to be quick: `overdue` finds a favoured connection
that is not. A request that announces no more than `SMALL_PARTIAL_BYTES` is received in any case,
and of others no connection takes more than that by then. The server cuts off those that have
stopped sending. A client that announces much and sends little delays large requests for seconds,
and small requests not at all.

*Waiting*: long polls, joins, and requests that a thread decodes. They end when their clients like,
so they keep no other connection from being read. Over the limit a request that is not small may not
wait: the caller closes its connection. Large requests that are not decoded yet wait for room beside
this account, up to half of the limit (`large_requests`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

#: The bytes that the favoured connection has to send from one sweep to the next.
PROGRESS_BYTES_MIN = 64 * 1024
#: A request of this size is received in any case, since it may come in pieces, and so much may
#: stand behind another request: twice so many bytes for each connection stand beside the limit.
SMALL_PARTIAL_BYTES = 16 * 1024
#: A request that holds no more may always wait: a fetch of a hundred partitions, for example.
SMALL_BYTES_MAX = 1 << 16


class Receiver(Protocol):
    """A connection, as the accounts see it."""

    @property
    def received_bytes(self) -> int:
        """The bytes that the connection has received since it was accepted."""
        ...

    @property
    def holds_partial(self) -> bool:
        """Whether a request of the connection that is not small is still arriving, or more than
        `SMALL_PARTIAL_BYTES` are behind another."""
        ...

    @property
    def is_held_up(self) -> bool:
        """Whether the connection is not read at present: others have their turn, or a quota mutes
        it."""
        ...

    def resume_memory(self) -> None:
        """Read on, if `may_read` allows it now."""
        ...


class RequestMemory:
    """The three accounts. `limit_bytes` is the limit of each; negative: no limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = sys.maxsize if limit_bytes < 0 else limit_bytes
        #: The caller adds a request that begins to wait and takes it away again; it calls `wake`
        #: after that where any connection is `waiting`.
        self.in_flight_bytes = 0
        #: Changed by `resize_partial` only.
        self.partial_bytes = 0
        #: Added to by `hold_waiting`, and by `large_requests`.
        self.waiting_bytes = 0
        #: Large requests that wait until there is room for what they decode to. While there are
        #: any, `on_room` is called when there may be.
        self.undecoded_bytes = 0
        self.on_room: Callable[[], None]
        #: The connections that may not read on while too much is in flight.
        self.waiting: dict[Receiver, None] = {}
        #: Those that may not read on while others hold too much of partial requests.
        self._crowded: dict[Receiver, None] = {}
        self._favoured: Receiver | None = None
        self._favoured_bytes = 0

    def hold_waiting(self, size_bytes: int) -> bool:
        """Account for a request that waits; return whether it may."""
        self.waiting_bytes += size_bytes
        return size_bytes <= SMALL_BYTES_MAX or self.waiting_bytes <= self.limit_bytes

    def give_back_waiting(self, size_bytes: int) -> None:
        """Account for the end of a request that waited."""
        self.waiting_bytes -= size_bytes
        if self.undecoded_bytes:
            self.on_room()

    def resize_partial(self, by_bytes: int) -> None:
        """Account for a partial request that came or grew, or went (negative)."""
        self.partial_bytes += by_bytes
        if by_bytes < 0 and (self._crowded or self.waiting):
            self.wake()

    @property
    def is_crowded(self) -> bool:
        """Whether partial requests hold too much."""
        return self.partial_bytes > self.limit_bytes

    def may_read(self, receiver: Receiver) -> bool:
        """Return whether `receiver` may read on. If not, `resume_memory` is called in time."""
        if self.in_flight_bytes > self.limit_bytes:
            self.waiting[receiver] = None
            return False
        if self.is_crowded and receiver.holds_partial and not self._is_favoured(receiver):
            self._crowded[receiver] = None
            return False
        self._crowded.pop(receiver, None)
        return True

    def forget(self, receiver: Receiver) -> None:
        """Forget a connection that has gone and has given its memory back."""
        self.waiting.pop(receiver, None)
        self._crowded.pop(receiver, None)
        if self._favoured is receiver:
            self._favoured = None
            self.wake()

    def overdue(self) -> Receiver | None:
        """Return the favoured connection if it has sent too little since the last call.

        The caller closes it: other connections wait for the memory.
        """
        favoured = self._favoured
        if favoured is None or not self.is_crowded:
            self._favoured = None
            return None
        if not favoured.holds_partial:
            # Its requests have arrived whole: now it is another connection's turn.
            self._favoured = None
            self.wake()
            return None
        if favoured in self.waiting or favoured.is_held_up:
            # Requests in flight, the turns of others, or a quota keep it from being read.
            self._begin_to_count(favoured)
            return None
        received = favoured.received_bytes
        is_overdue = received - self._favoured_bytes < PROGRESS_BYTES_MIN
        self._favoured_bytes = received
        return favoured if is_overdue else None

    def _is_favoured(self, receiver: Receiver) -> bool:
        if not self._has_favoured():
            self._favoured = receiver
            self._begin_to_count(receiver)
        return self._favoured is receiver

    def _has_favoured(self) -> bool:
        return self._favoured is not None and self._favoured.holds_partial

    def _begin_to_count(self, favoured: Receiver) -> None:
        """Give a connection the whole time between the next two sweeps."""
        self._favoured_bytes = favoured.received_bytes - PROGRESS_BYTES_MIN

    def wake(self) -> None:
        """Let each connection that waits read on, if it may now."""
        if self.in_flight_bytes > self.limit_bytes:
            if self._crowded:
                # The first one waits for what is in flight instead. Its end wakes the others, too.
                self._crowded.pop(first := next(iter(self._crowded)))
                self.waiting[first] = None
            return
        waiting, self.waiting = self.waiting, {}
        for receiver in waiting:
            receiver.resume_memory()
        # Thousands may wait: where one alone may go on, the others are not asked.
        crowded = self._crowded
        while crowded and not (self.is_crowded and self._has_favoured()):
            receiver = next(iter(crowded))
            del crowded[receiver]
            receiver.resume_memory()
