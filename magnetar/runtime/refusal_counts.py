"""How often requests were refused, by API and error code: for metrics.

Bounded by the numbers of APIs and of error codes: no client can make it grow.
"""

from __future__ import annotations

from wire.error_code import ErrorCode


class RefusalCounts:
    """Refusals of whole requests, and of partitions and transactions where these are logged."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, ErrorCode], int] = {}

    def add(self, api_key: int, code: ErrorCode) -> None:
        """Count one refusal."""
        self.counts[api_key, code] = self.counts.get((api_key, code), 0) + 1

    def of_api(self, api_key: int) -> int:
        """Return how many refusals the requests of one API met."""
        return sum(count for (key, _), count in self.counts.items() if key == api_key)
