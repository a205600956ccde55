"""Patterns of clients: what they match, and that none takes long because of its groups."""

from __future__ import annotations

import time

import pytest

from magnetar.runtime.patterns import matching
from wire.error_code import ErrorCode
from wire.errors import KafkaError


async def test_a_pattern_matches_whole_texts() -> None:
    assert await matching("t.*", ["t", "topic", "at"]) == {"t", "topic"}
    assert await matching("(a|b)+", ["a", "abba", "abc"]) == {"a", "abba"}


async def test_look_around_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        await matching("a(?=b)", ["ab"])
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_groups_cost_nothing() -> None:
    texts = [f"{'a' * 200}-{number}" for number in range(30)]
    used_s = time.process_time()
    assert await matching("(|a)*" * 6000, texts) == set()
    # With what each group has matched: more than a second for each text.
    assert time.process_time() - used_s < 10
