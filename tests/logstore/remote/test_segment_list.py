"""What a list of segments says of bytes, and that long lists are not gone through for it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from uuid import UUID

import pytest

from logstore.remote.commit_store import LogKey, StoredSegment
from logstore.remote.segment_list import SegmentList
from wire.records import BatchHeader, SimpleRecord, build_batch

KEY = LogKey(UUID(int=1), 0)


def _list_of(sizes: list[int]) -> SegmentList:
    """Return a list with a sealed segment of ten offsets for each size, and an empty active one."""
    known = SegmentList(KEY)
    sealed = [StoredSegment(KEY, 10 * n, 10 * n + 10, size, 0) for n, size in enumerate(sizes)]
    known.begin(sealed, 10 * len(sizes))
    return known


def _batch_at(known: SegmentList, value_bytes: int) -> BatchHeader:
    """Return the header of a batch of ten records at the end."""
    records = [SimpleRecord(b"k", bytes(value_bytes), 5)] * 10
    base_offset = known.base_offsets[-1]
    return BatchHeader.parse(bytes(build_batch(records, base_offset=base_offset)))


def _steps(call: Callable[[], object]) -> int:
    """Return how many lines Python runs in a call."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    traced = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(traced)
    return steps


@pytest.mark.parametrize("seed", range(20))
def test_it_counts_what_a_walk_through_all_segments_counts(seed: int) -> None:
    chance = random.Random(seed)
    known = _list_of([chance.randint(1, 100) for _ in range(chance.randint(0, 12))])
    for size in range(chance.randint(0, 4)):
        known.add(_batch_at(known, size))
        known.seal()
    known.trim(chance.randint(0, 60))
    assert [*known.base_offsets] == [one.base_offset for one in known.facts()]
    facts = [*known.facts()]
    for _ in range(50):
        offset, end = chance.randint(0, 130), chance.randint(0, 130)
        if offset < end:
            assert known.bytes_touching(offset, end) == sum(
                one.size_bytes for one in facts if one.base_offset < end and one.end_offset > offset
            )
        covering = StoredSegment(KEY, offset, end, 0, 0)
        assert known.covered_by(covering) == [
            one.base_offset for one in facts[:-1] if offset <= one.base_offset < end
        ]
    assert known.size_bytes == sum(one.size_bytes for one in facts)


def _steps_of_questions(count: int) -> list[int]:
    """Return the steps of each question to a list of so many segments."""
    known = _list_of([8] * count)
    covering = StoredSegment(KEY, 10, 20, 0, 0)
    return [
        _steps(lambda: known.bytes_touching(5, 10 * count)),
        _steps(lambda: known.bytes_since(5)),
        _steps(lambda: known.covered_by(covering)),
        _steps(lambda: known.add(_batch_at(known, 9))) + _steps(known.seal),
        _steps(lambda: known.trim(20)),
    ]


def test_no_question_goes_through_all_segments() -> None:
    few, many = _steps_of_questions(10), _steps_of_questions(1_000)
    assert all(more <= less + 20 for less, more in zip(few, many, strict=True)), (few, many)
