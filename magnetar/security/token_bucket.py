"""How fast a client may go: a token bucket, the rule behind every quota.

Pure: the caller gives the time. Each second brings `Rate.per_s` tokens, and what a client does
takes some. The bucket holds what `burst_s` seconds bring, and it may be in debt: then the client
waits until the debt is paid. So in any time of T seconds a client that waits gets at most
`per_s * (T + burst_s)`, and one last request.

Kafka compares a rate over eleven samples with the quota (KIP-13), and uses a bucket for mutations
alone (KIP-599). Both give the same first burst and the same waits: docs/decisions/0035-quotas.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: The largest throttle time that a response can carry.
_WAIT_MS_MAX = 2**31 - 1


class Rate(NamedTuple):
    """Tokens for each second, 0 at least; the seconds whose tokens a bucket can hold."""

    per_s: float
    burst_s: float


class TokenBucket:
    """The tokens of one client, or of several that share a quota. It begins full."""

    __slots__ = ("_tokens", "_updated_ms", "is_told", "rate")

    def __init__(self, rate: Rate, now_ms: int) -> None:
        self.rate = rate
        self._tokens = rate.per_s * rate.burst_s
        self._updated_ms = now_ms
        #: Whether the log has a line about this bucket's debt.
        self.is_told = False

    def take(self, tokens: float, now_ms: int) -> None:
        """Take tokens, into debt where there are too few; a negative number gives them back."""
        self._tokens = min(self._refilled(now_ms) - tokens, self.rate.per_s * self.rate.burst_s)

    def wait_ms(self, now_ms: int) -> int:
        """Return how long it takes to pay the debt; 0 without one."""
        debt = -self._refilled(now_ms)
        if debt <= 0:
            return 0
        # Compared before the division: beside a tiny rate its result may be infinite.
        if debt * 1000 >= _WAIT_MS_MAX * self.rate.per_s:
            return _WAIT_MS_MAX
        return math.ceil(debt / self.rate.per_s * 1000)

    def is_full(self, now_ms: int) -> bool:
        """Return whether the bucket is as good as a new one."""
        return self._refilled(now_ms) >= self.rate.per_s * self.rate.burst_s

    def _refilled(self, now_ms: int) -> float:
        passed_s = (now_ms - self._updated_ms) / 1000
        self._updated_ms = now_ms
        burst = self.rate.per_s * self.rate.burst_s
        self._tokens = min(self._tokens + self.rate.per_s * passed_s, burst)
        return self._tokens
