"""The soak's checker sees every kind of fault, and none where there is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compat_tests.soak.checker import Copy, Visible, copy_faults, transaction_faults
from compat_tests.soak.entry import Entry
from compat_tests.soak.histories import Outcome, fold, outcomes


def seen(*numbers: int, txn: str = "a", of: int = 2) -> list[Visible]:
    return [Visible(0, place, Entry(txn, number, of)) for place, number in enumerate(numbers)]


def history(*events: str) -> list[dict[str, object]]:
    return [{"event": event, "txn": "a", "of": 2} for event in ("begin", *events)]


COMMITTED = ("committing", "committed")


@pytest.mark.parametrize(
    ("events", "visible"),
    [
        (COMMITTED, seen(0, 1)),
        (COMMITTED, seen(1, 0)),
        (("committing",), seen(0, 1)),
        (("committing",), []),
        ((), []),
        (("aborted",), []),
        (("committing", "aborted"), []),
    ],
)
def test_what_is_whole_is_no_fault(events: Sequence[str], visible: list[Visible]) -> None:
    assert transaction_faults(fold(history(*events)), visible) == []


@pytest.mark.parametrize(
    ("events", "visible", "fault"),
    [
        (COMMITTED, [], "lost"),
        (COMMITTED, seen(1), "torn"),
        (COMMITTED, seen(0, 1, 1), "doubled"),
        (("committing",), seen(0), "torn"),
        (("committing",), seen(0, 1, 0, 1), "doubled"),
        ((), seen(0, 1), "aborted, but visible"),
        (("aborted",), seen(0), "aborted, but visible"),
        (("committing", "aborted"), seen(0, 1), "aborted, but visible"),
        (("aborted",), seen(0, txn="b"), "never written"),
    ],
)
def test_a_fault_is_named_with_a_witness(
    events: Sequence[str], visible: list[Visible], fault: str
) -> None:
    (told,) = transaction_faults(fold(history(*events)), visible)
    assert fault in told
    assert visible == [] or visible[-1].entry.txn in told


def test_a_transaction_is_unknown_while_its_commit_is_not_answered() -> None:
    assert outcomes(fold(history("committing"))) == {Outcome.UNKNOWN.value: 1}
    assert outcomes(fold(history())) == {Outcome.ABORTED.value: 1}


def copied(*places: int) -> list[Copy]:
    return [Copy(0, place, Entry("a", place, 2).to_value()) for place in places]


@pytest.mark.parametrize(
    ("copies", "fault"),
    [
        (copied(0), "never copied"),
        (copied(0, 1, 1), "copied more than once"),
        (copied(0, 1, 2), "copied, but not visible"),
    ],
)
def test_a_group_copies_what_is_visible_once(copies: list[Copy], fault: str) -> None:
    (told,) = copy_faults("a group", seen(0, 1), copies)
    assert fault in told
    assert copy_faults("a group", seen(0, 1), copied(1, 0)) == []
