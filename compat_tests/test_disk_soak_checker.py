"""The checker of the disk soak sees every kind of fault, and none where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from compat_tests.disk_soak.checker import Found, Written, lost, unwanted
from compat_tests.disk_soak.memory import Memory, Sample
from compat_tests.disk_soak.numbers import Numbers, Run
from compat_tests.disk_soak.record import Bulk, parse, value_of

ACKNOWLEDGED = [{"event": "acknowledged", "stream": "a", "runs": [[0, 3], [4, 6]]}]


def transaction(*events: str) -> list[dict[str, Any]]:
    return [{"event": each, "stream": "a", "first": 0, "end": 3} for each in ("begin", *events)]


def written(events: Iterable[dict[str, Any]]) -> Written:
    told = Written()
    for event in events:
        told.on_event(event)
    return told


def found(*runs: Run, stream: str = "a", committed: bool = True, once: bool = True) -> Found:
    reader = Found("reader", committed, once)
    reader.on_event({"event": "read", "runs": [[stream, *run] for run in runs]})
    return reader


def faults(told: Written, reader: Found) -> list[str]:
    return [*reader.faults, *lost(told, reader), *unwanted(told, reader)]


@pytest.mark.parametrize(
    ("events", "reader"),
    [
        (ACKNOWLEDGED, found((0, 3), (4, 6))),
        (ACKNOWLEDGED, found((0, 7))),
        (ACKNOWLEDGED, found((0, 4), (2, 6), once=False)),
        (transaction("committing", "committed"), found((0, 3))),
        (transaction("committing"), found((0, 3))),
        (transaction("committing"), found()),
        (transaction("aborted"), found()),
        (transaction("aborted"), found((0, 2), committed=False)),
    ],
)
def test_what_is_whole_is_no_fault(events: list[dict[str, Any]], reader: Found) -> None:
    assert faults(written(events), reader) == []


@pytest.mark.parametrize(
    ("events", "reader", "fault"),
    [
        (ACKNOWLEDGED, found((0, 3)), "lost: records 4 to 5"),
        (ACKNOWLEDGED, found((0, 2), (4, 6)), "lost: records 2 to 2"),
        (ACKNOWLEDGED, found((0, 4), (3, 6)), "doubled or out of order: record 3"),
        (transaction("committing", "committed"), found((0, 2)), "lost: records 2 to 2"),
        (transaction("committing"), found((1, 3)), "torn"),
        (transaction("aborted"), found((1, 3)), "dirty"),
        (transaction(), found((0, 3)), "dirty"),
    ],
)
def test_a_fault_is_named_with_a_witness(
    events: list[dict[str, Any]], reader: Found, fault: str
) -> None:
    (told,) = faults(written(events), reader)
    assert fault in told and "reader" in told


def test_what_was_never_written_is_a_fault() -> None:
    (told,) = faults(written([]), found((0, 1), stream="b"))
    assert "never written: b" in told


def test_a_record_tells_whose_it_is_unless_a_byte_has_changed() -> None:
    value = value_of("a.1f", 7)
    assert parse(value) == Bulk("a.1f", 7)
    assert parse(value[:-1] + b"\x00") is None
    assert parse(value[:-1]) is None


@pytest.mark.parametrize(
    ("runs", "missing"),
    [
        ([], [(2, 8)]),
        ([(0, 10)], []),
        ([(0, 3), (5, 6)], [(3, 5), (6, 8)]),
        ([(5, 6), (0, 3), (3, 5)], [(6, 8)]),
        ([(0, 1), (9, 12)], [(2, 8)]),
    ],
)
def test_numbers_know_what_is_missing(runs: Sequence[Run], missing: list[Run]) -> None:
    numbers = Numbers(runs)
    assert list(numbers.missing(2, 8)) == missing
    assert numbers.count(2, 8) == 6 - sum(end - first for first, end in missing)


def test_memory_that_grows_is_a_fault() -> None:
    def judged(last_kb: int) -> list[str]:
        memory = Memory()
        samples = [Sample(300.0, 1, 100_000), Sample(1790.0, 2, last_kb)]
        memory.add(samples)
        return memory.judge(1800.0)[0]

    assert judged(119_000) == []
    assert "has grown" in judged(121_000)[0]
