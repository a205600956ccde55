"""Answers to offsets that are ahead of their transaction's data: they linger.

librdkafka adds a transaction's partitions a millisecond after the first `produce`, by a thread that
an answer wakes, and that rounds what it still has to sleep up to a whole millisecond. Decision
within that millisecond, TxnOffsetCommit makes it sleep for nearly one more; later, the partitions
are added at once. So while a transaction holds nothing but offsets, that answer is kept until
`transaction.offsets.linger.us` after AddOffsetsToTxn came. What it acknowledges is done and durable
before. See docs/decisions/0019-offsets-linger.md.
"""

from __future__ import annotations

import asyncio

from magnetar.logging import get_logger
from magnetar.runtime.precise_timer import PreciseTimer, PreciseTimerUnavailable, now_ns

_log = get_logger("transactions")


class _Lingering:
    """A transaction that is ahead: until when, and the answers that wait for it."""

    __slots__ = ("due_ns", "waiters")

    def __init__(self, due_ns: int) -> None:
        self.due_ns = due_ns
        self.waiters: list[asyncio.Future[None]] = []

    def release(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class OffsetsLinger:
    """The transactions that began with offsets a moment ago, and have no data yet."""

    def __init__(self, linger_us: int) -> None:
        """`linger_us` 0: nothing lingers, nor where no timer counts in microseconds."""
        self._linger_ns = linger_us * 1000
        #: By transactional id, in the order in which they are due. What is past its time leaves
        #: with the next that begins.
        self._ahead: dict[str, _Lingering] = {}
        self._last_due_ns = 0
        self._timer: PreciseTimer | None = None
        self._set_to_ns = 0  # 0: the timer is not set

    def __len__(self) -> int:
        return len(self._ahead)

    def begin(self, transactional_id: str, since_ns: int) -> None:
        """A transaction holds offsets alone, asked for at `since_ns` of `precise_timer.now_ns`."""
        if not self._linger_ns:
            return
        self.end(transactional_id)
        self._release_due(now_ns())
        # In order also where one had to wait until it could begin.
        self._last_due_ns = max(self._last_due_ns, since_ns + self._linger_ns)
        self._ahead[transactional_id] = _Lingering(self._last_due_ns)

    def end(self, transactional_id: str) -> None:
        """The transaction holds more now, or has ended: no answer of it lingers."""
        if self._ahead and (lingering := self._ahead.pop(transactional_id, None)) is not None:
            lingering.release()

    def until_over(self, transactional_id: str) -> asyncio.Future[None] | None:
        """Return what an answer to the transaction's offsets has to await, None: nothing."""
        lingering = self._ahead.get(transactional_id)
        if lingering is None or lingering.due_ns <= now_ns():
            return None
        if self._timer is None:
            try:
                self._timer = PreciseTimer(self._on_time)
            except PreciseTimerUnavailable as unavailable:
                _log.info("no answer to offsets lingers", reason=str(unavailable))
                self._linger_ns = 0
                self._ahead.clear()
                return None
        if not self._set_to_ns or lingering.due_ns < self._set_to_ns:
            self._set(self._timer, lingering.due_ns)
        waiter = asyncio.get_running_loop().create_future()
        lingering.waiters.append(waiter)
        return waiter

    def close(self) -> None:
        """Let everything go."""
        self._linger_ns = 0
        for lingering in self._ahead.values():
            lingering.release()
        self._ahead.clear()
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _on_time(self) -> None:
        self._set_to_ns = 0
        self._release_due(now_ns())
        for lingering in self._ahead.values():
            if lingering.waiters and self._timer is not None:
                self._set(self._timer, lingering.due_ns)
                return

    def _set(self, timer: PreciseTimer, at_ns: int) -> None:
        self._set_to_ns = at_ns
        timer.set(at_ns)

    def _release_due(self, now: int) -> None:
        while self._ahead:
            transactional_id, lingering = next(iter(self._ahead.items()))
            if lingering.due_ns > now:
                return
            del self._ahead[transactional_id]
            lingering.release()
