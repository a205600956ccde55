"""Patterns that Java and RE2 would read differently are refused where Kafka reads them by Java."""

from __future__ import annotations

import pytest

from magnetar.config.client_metrics import check_patterns
from magnetar.config.java_patterns import read_otherwise
from magnetar.config.setting import InvalidValue


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("app-[a-z&&[^b]]+", "[a-z&&[^b]"),
        ("[[a]b]", "[[a]"),
        ("[[:alpha:]]+", "[[:alpha:]"),
        (r"[\&&&x]", r"[\&&&x]"),
        (r"\[[a&&b]", "[a&&b]"),
        ("a&&b", None),
        ("[^&,]+", None),
        (r"[a\[&]+", None),
        (r"\Q[a&&b]\E", None),
        ("[]a]", None),
        (r"\[&&", None),
    ],
)
def test_sets_within_characters_are_found(pattern: str, found: str | None) -> None:
    assert read_otherwise(pattern) == found


def test_a_subscription_whose_pattern_has_sets_is_refused() -> None:
    with pytest.raises(InvalidValue, match="Sets of characters"):
        check_patterns({"match": "client_id=app-[a-z&&[^b]]+"}, lambda _: True)
    check_patterns({"match": "client_id=app-[a-z]+"}, lambda _: True)
