"""Patterns of clients: what they match, that groups cost nothing, and that patterns take turns."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any

import pytest
import re2  # type: ignore[import-untyped]  # it has no stubs
from hypothesis import given
from hypothesis import strategies as st

from magnetar.runtime import patterns
from magnetar.runtime.patterns import PATTERNS, compile_pattern, matching
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


class Steps:
    """Notes the texts of each turn, and holds up the first turns until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[str] = []
        self.gate = threading.Event()
        self._match_some = patterns._match_some
        # Each text is a turn.
        monkeypatch.setattr(patterns, "_TURN_S", 0)
        monkeypatch.setattr(patterns, "_match_some", self._noted)

    def _noted(self, compiled: Any, waiting: deque[str]) -> list[str]:
        assert self.gate.wait(60)
        self.turns.append(waiting[0])
        return self._match_some(compiled, waiting)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


async def test_patterns_take_turns(steps: Steps) -> None:
    many = asyncio.ensure_future(matching("m.*", [f"m{number}" for number in range(100)]))
    few = asyncio.ensure_future(matching("f.*", ["f0", "f1"]))
    await asyncio.sleep(0)
    steps.gate.set()
    assert await few == {"f0", "f1"}
    assert len(await many) == 100
    assert steps.turns[:4] == ["m0", "f0", "m1", "f1"]


async def test_a_cancelled_pattern_has_no_further_turn(steps: Steps) -> None:
    many = asyncio.ensure_future(matching("m.*", [f"m{number}" for number in range(100)]))
    steps.gate.set()
    while not steps.turns:
        await asyncio.sleep(0)
    many.cancel()
    with pytest.raises(asyncio.CancelledError):
        await many
    assert PATTERNS.jobs == 0
    assert await matching("f", ["f"]) == {"f"}
    assert len(steps.turns) < 100
    assert steps.turns[-1] == "f"


async def test_a_pattern_that_has_begun_is_not_refused(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATTERNS, "_jobs_max", 1)
    begun = asyncio.ensure_future(matching("m.*", ["m0", "m1", "m2"]))
    await asyncio.sleep(0)
    with pytest.raises(KafkaError) as refused:
        await matching("f", ["f"])
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    steps.gate.set()
    assert await begun == {"m0", "m1", "m2"}
