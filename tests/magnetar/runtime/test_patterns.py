"""Patterns of clients: what they match, that groups cost nothing."""

from __future__ import annotations

import pytest
import re2  # type: ignore[import-untyped]  # it has no stubs
from hypothesis import given
from hypothesis import strategies as st

from magnetar.runtime.patterns import compile_pattern, matching
from wire.error_code import ErrorCode
from wire.errors import KafkaError


async def test_a_pattern_matches_whole_texts() -> None:
    assert await matching("t.*", ["t", "topic", "at"]) == {"t", "topic"}
    assert await matching("(a|b)+", ["a", "abba", "abc"]) == {"a", "abba"}
    assert await matching("(?P<first>a|b)+(?<last>c)?", ["a", "abbac", "abd"]) == {"a", "abbac"}
    assert await matching("a*", []) == frozenset()


async def test_look_around_is_refused() -> None:
    for texts in (["ab"], []):
        with pytest.raises(KafkaError) as refused:
            await matching("a(?=b)", texts)
        assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "pattern",
    [
        "(|a)*" * 600,
        "".join(f"(?P<n{number}>|a)*" for number in range(600)),
        "(?<a\u0301>a)",
        r"[](?P<n>](?P<n>a)",
        r"[[:^alpha:](?P<n>](?P<n>a)",
        r"\((?P<n>a)",
        r"\Q(?P<n>\E(?P<m>a)\Q(?P<n>",
    ],
)
def test_no_group_is_captured(pattern: str) -> None:
    # What each of thousands of groups has matched takes seconds for each text.
    assert compile_pattern(pattern).groups == 0


#: Pieces of patterns, among which group names stand where they are none.
PIECES = [
    *("(?P<n>", "(?<m>", "(?P<n>a", "(?<m>b)", "(", "(?:", "(?i)", "(?i:", ")", "[", "]", "^", "-"),
    *("[:alpha:]", "[:^digit:]", "[:", "\\", "\\Q", "\\E", "\\]", "\\[", "\\(", "\\\\", "\\pL"),
    *("?", "*", "|", ".", "<", "P", ">", "a", "b", "\\x{5d}", "{2}", "$"),
]
TEXTS = st.lists(st.sampled_from(["a", "b", "(?P<n>", "(?<m>", "(", "]", "[", "\\", "P", "<"]))


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), TEXTS.map("".join))
def test_a_pattern_without_its_names_matches_the_same(pattern: str, text: str) -> None:
    options = re2.Options()
    options.log_errors = False
    try:
        named = re2.compile(pattern, options=options)
    except re2.error:
        return
    nameless = compile_pattern(pattern)
    assert nameless.groups == 0
    for each in (text, pattern, "a", "ab"):
        assert (nameless.fullmatch(each) is None) == (named.fullmatch(each) is None)
