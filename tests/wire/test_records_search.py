"""Records are found by their timestamps, also when these go back and forth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.records import (
    Compression,
    SimpleRecord,
    build_batch,
    offset_for_timestamp,
    offset_of_max_timestamp,
    set_log_append_time,
)


def batch_of(timestamps: list[int], compression: Compression = Compression.NONE) -> bytearray:
    records = [SimpleRecord(b"k", b"v", timestamp) for timestamp in timestamps]
    return build_batch(records, base_offset=100, compression=compression)


@given(
    timestamps=st.lists(st.integers(-1, 30), min_size=1, max_size=10),
    sought=st.integers(-1, 32),
    first_offset=st.integers(98, 112),
    codec=st.sampled_from(Compression),
)
def test_the_first_record_that_is_not_older_is_found(
    timestamps: list[int], sought: int, first_offset: int, codec: Compression
) -> None:
    expected = [
        (offset, timestamp)
        for offset, timestamp in enumerate(timestamps, 100)
        if timestamp >= sought and offset >= first_offset
    ]
    found = offset_for_timestamp(batch_of(timestamps, codec), sought, first_offset)
    assert found == (expected[0] if expected else None)


@pytest.mark.parametrize(
    ("timestamps", "found"),
    [([5, 9, 7, 9], (101, 9)), ([-1, 0], (101, 0)), ([-1, -1], None), ([3], (100, 3))],
)
def test_the_latest_record_is_the_first_with_the_latest_time(
    timestamps: list[int], found: tuple[int, int] | None
) -> None:
    assert offset_of_max_timestamp(batch_of(timestamps)) == found


def test_under_log_append_time_the_first_record_is_the_latest() -> None:
    batch = batch_of([5, 9, 7])
    set_log_append_time(batch, 1000)
    assert offset_of_max_timestamp(batch) == (100, 1000)
    assert offset_for_timestamp(batch, 8) == (100, 1000)
    assert offset_for_timestamp(batch, 1001) is None
