"""Whether each value is there as often as it should be: the witness of what is wrong."""

from __future__ import annotations

import pytest

from magnetar.testing.records import Record, check_once


def records(*values: bytes | None) -> list[Record]:
    return [Record(0, offset, 0, b"k", value) for offset, value in enumerate(values)]


def test_what_is_there_once_is_right() -> None:
    check_once("t", records(b"a", b"b"), None)
    check_once("t", records(b"a", b"b"), [b"b", b"a"])
    check_once("t", records(b"a", b"a", None), [b"a", None, b"a"])


@pytest.mark.parametrize(
    ("there", "expected", "told"),
    [
        ([b"a", b"a"], None, r"t: more than once: \(b'k', b'a'\)"),
        ([b"a", b"a"], [b"a"], "t: more than once: b'a'"),
        ([b"a"], [b"a", b"b"], "t: missing: b'b'"),
        ([b"a"], [], "t: not expected: b'a'"),
        ([b"x", b"x"], [b"y"], "missing: b'y'; not expected: b'x'"),
        ([bytes([n]) for n in range(9)], [], "and 4 more"),
    ],
)
def test_what_is_not_is_told(there: list[bytes], expected: list[bytes] | None, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_once("t", records(*there), expected)
