"""The rule behind quotas: what a client gets that waits when it is told to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.security.token_bucket import Rate, TokenBucket

REQUESTS = st.lists(st.tuples(st.integers(0, 60_000), st.floats(0, 1e6)), min_size=1, max_size=60)
RATES = st.builds(Rate, st.floats(1, 1e6), st.floats(1, 100))


@given(RATES, REQUESTS)
def test_a_client_that_waits_gets_at_most_its_rate_a_burst_and_one_request(
    rate: Rate, requests: list[tuple[int, float]]
) -> None:
    now_ms = 0
    bucket = TokenBucket(rate, now_ms)
    taken = 0.0
    for idle_ms, amount in requests:
        now_ms += idle_ms
        bucket.take(amount, now_ms)
        taken += amount
        allowed = rate.per_s * (now_ms / 1000 + rate.burst_s) + amount
        assert taken <= allowed * 1.000001 + 1
        now_ms += bucket.wait_ms(now_ms)


@given(RATES, st.floats(0, 1e6))
def test_after_its_wait_a_client_owes_nothing(rate: Rate, amount: float) -> None:
    bucket = TokenBucket(rate, 0)
    bucket.take(amount, 0)
    waited_ms = bucket.wait_ms(0)
    # Floating point may leave a rest that is worth a millisecond.
    assert waited_ms == 2**31 - 1 or bucket.wait_ms(waited_ms) <= 1


@given(RATES, REQUESTS)
def test_what_is_given_back_was_never_taken(rate: Rate, requests: list[tuple[int, float]]) -> None:
    bucket, untouched = TokenBucket(rate, 0), TokenBucket(rate, 0)
    now_ms = 0
    for passed_ms, amount in requests:
        now_ms += passed_ms
        bucket.take(amount, now_ms)
        bucket.take(-amount, now_ms)
    assert abs(bucket.wait_ms(now_ms) - untouched.wait_ms(now_ms)) <= 1


def test_the_wait_is_what_kafka_reckons() -> None:
    # 300 bytes in the window of ten seconds are 30 a second: (30 - 10) / 10 * 10 s.
    bucket = TokenBucket(Rate(10, 10), 0)
    bucket.take(300, 0)
    assert bucket.wait_ms(0) == 20_000
    assert bucket.wait_ms(5_000) == 15_000
    assert bucket.wait_ms(20_000) == 0


def test_no_silence_gives_more_than_one_burst() -> None:
    bucket = TokenBucket(Rate(1, 10), 0)
    assert bucket.is_full(10_000_000)
    bucket.take(11, 10_000_000)
    assert bucket.wait_ms(10_000_000) == 1_000


def test_a_changed_rate_counts_for_the_debt_there_is() -> None:
    bucket = TokenBucket(Rate(1, 10), 0)
    bucket.take(110, 0)
    bucket.rate = Rate(100, 10)
    assert bucket.wait_ms(0) == 1_000


@pytest.mark.parametrize("per_s", [0.0, 5e-324, 1e-310, 1e-300])
def test_a_debt_that_no_time_pays_waits_for_the_longest(per_s: float) -> None:
    """A quota may be so small that the wait is more than a float can say, or that its part is 0."""
    bucket = TokenBucket(Rate(per_s, 1), 0)
    bucket.take(1e9, 0)
    assert bucket.wait_ms(0) == 2**31 - 1
    assert bucket.wait_ms(2**40) == 2**31 - 1
