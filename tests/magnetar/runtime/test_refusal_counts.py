"""Refusals are counted by API and error code."""

from __future__ import annotations

from magnetar.runtime.refusal_counts import RefusalCounts
from wire.error_code import ErrorCode

PRODUCE = 0


def test_refusals_are_counted_by_api_and_code() -> None:
    counts = RefusalCounts()
    for _ in range(2):
        counts.add(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    counts.add(PRODUCE, ErrorCode.INVALID_RECORD)
    assert counts.counts[PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER] == 2
    assert counts.of_api(PRODUCE) == 3
