"""Aborted transactions: the overlap and nothing else, at the overlap's cost."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.segments.aborted_index import (
    ENTRY_SIZE,
    AbortedEntry,
    AbortedIndex,
    AbortedTransaction,
    decode_entries,
)


@st.composite
def histories(draw: st.DrawFn) -> list[AbortedEntry]:
    """Interleaved transactions of a few producers, ended in any order, some committed."""
    open_since: dict[int, int] = {}
    entries: list[AbortedEntry] = []
    step = st.tuples(st.integers(0, 5), st.booleans(), st.booleans())
    for offset, (producer_id, ends, aborts) in enumerate(draw(st.lists(step, max_size=400))):
        if producer_id not in open_since:
            open_since[producer_id] = offset
        elif ends:
            first = open_since.pop(producer_id)
            if aborts:
                stable = min(open_since.values(), default=offset + 1)
                entries.append(AbortedEntry(producer_id, first, offset, stable))
    return entries


@given(histories(), st.integers(0, 400), st.integers(0, 60))
def test_a_fetch_is_told_of_the_aborted_transactions_that_overlap_it(
    entries: list[AbortedEntry], first_offset: int, size: int
) -> None:
    end_offset = first_offset + size
    assert AbortedIndex(entries).overlapping(first_offset, end_offset) == [
        AbortedTransaction(entry.producer_id, entry.first_offset)
        for entry in entries
        if entry.last_offset >= first_offset and entry.first_offset < end_offset
    ]


@given(histories(), st.integers(0, 400), st.integers(1, 5))
def test_the_end_of_some_markers_is_behind_the_last_of_them(
    entries: list[AbortedEntry], offset: int, count: int
) -> None:
    ends = [entry.last_offset + 1 for entry in entries if entry.last_offset >= offset]
    expected = ends[count - 1] if len(ends) >= count else 1 << 63
    assert AbortedIndex(entries).end_of_markers(offset, count) == expected


@given(histories(), st.integers(0, 400))
def test_pruning_and_truncating_keep_the_rest(entries: list[AbortedEntry], at: int) -> None:
    pruned, truncated = AbortedIndex(entries), AbortedIndex(entries)
    pruned.prune(at)
    truncated.truncate(at)
    assert list(pruned) == [entry for entry in entries if entry.last_offset >= at]
    assert list(truncated) == [entry for entry in entries if entry.last_offset < at]
    assert pruned == AbortedIndex(list(pruned))


@pytest.mark.parametrize("is_one_open_throughout", [False, True])
def test_a_hundred_thousand_aborted_transactions_cost_a_fetch_only_its_overlap(
    is_one_open_throughout: bool,
) -> None:
    """Trap: each fetch returned every later abort."""
    count = 100_000
    index = AbortedIndex()
    for n in range(count):
        stable = 0 if is_one_open_throughout else 3 * n + 3
        index.append(AbortedEntry(n, 3 * n + 1, 3 * n + 2, stable))
    if is_one_open_throughout:
        index.append(AbortedEntry(count, 0, 3 * count, 3 * count + 1))
    started = time.thread_time()
    for n in range(0, count, 1_000):
        found = index.overlapping(3 * n, 3 * n + 30)
        assert len(found) == 10 + is_one_open_throughout
    assert (time.thread_time() - started) / 100 < 0.002
    assert index.overlapping(3 * count + 1, 3 * count + 100) == []


def test_an_entry_is_kafkas_34_bytes() -> None:
    entry = AbortedEntry(7, 20, 33, 21)
    data = entry.encode()
    assert data.hex() == "0000" + "".join(f"{number:016x}" for number in (7, 20, 33, 21))
    assert len(data) == ENTRY_SIZE == 34
    assert decode_entries(data) == ([entry], True)


@pytest.mark.parametrize(
    "damaged",
    [
        AbortedEntry(1, 5, 5, 6).encode(),
        AbortedEntry(1, -1, 50, 6).encode(),
        AbortedEntry(1, 0, 40, 6).encode(),
        b"\x00\x01" + AbortedEntry(1, 0, 50, 6).encode()[2:],
        bytes(34),
        AbortedEntry(1, 0, 50, 6).encode()[:20],
    ],
)
def test_entries_end_where_they_cannot_be(damaged: bytes) -> None:
    entry = AbortedEntry(7, 20, 40, 21)
    assert decode_entries(entry.encode() + damaged) == ([entry], False)
