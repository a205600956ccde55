"""The bytes of `.index` and `.timeindex`, and what is looked up in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logstore.segments.offset_index import OffsetIndex
from logstore.segments.time_index import TimeIndex

LOG_SIZE = 2**31 - 1


def test_an_offset_entry_is_a_relative_offset_and_a_position() -> None:
    index = OffsetIndex(1000)
    index.append(1005, 4200)
    index.append(1300, 0x010203)
    assert index.encode() == bytes.fromhex("00000005 00001068 0000012c 00010203")
    assert index.encode(1) == bytes.fromhex("0000012c 00010203")


def test_a_time_entry_is_a_timestamp_and_a_relative_offset() -> None:
    index = TimeIndex(1000)
    index.maybe_append(1700000000000, 1005)
    index.maybe_append(1700000000000, 1006)
    index.maybe_append(1700000000001, 1300)
    assert index.encode() == bytes.fromhex(
        "0000018bcfe56800 00000005 0000018bcfe56801 0000012c".replace(" ", "")
    )
    assert index.last == (1700000000001, 1300)


def test_a_lookup_is_at_or_before_what_is_looked_for() -> None:
    index = OffsetIndex(100)
    index.append(109, 1000)
    index.append(119, 2000)
    assert [index.lookup(offset) for offset in (100, 108, 109, 118, 119, 10**9)] == [
        *(0, 0, 1000, 1000, 2000, 2000)
    ]


def test_a_boundary_has_only_lower_offsets_before_it() -> None:
    index = OffsetIndex(100)
    index.append(109, 1000)
    index.append(119, 2000)
    assert index.boundary(999, 10**9) == 0
    assert index.boundary(1000, 10**9) == 1000
    assert index.boundary(5000, 10**9) == 2000
    assert index.boundary(5000, 120) == 2000
    assert index.boundary(5000, 119) == 1000


def test_a_time_lookup_is_before_all_that_is_as_late() -> None:
    index = TimeIndex(100)
    index.maybe_append(1000, 109)
    index.maybe_append(2000, 119)
    assert [index.lookup(time) for time in (0, 1000, 1001, 2000, 2001)] == [
        *(100, 100, 109, 109, 119)
    ]


def test_kafkas_preallocated_zeros_are_no_entries() -> None:
    offsets, times = OffsetIndex(0), TimeIndex(0)
    assert len(OffsetIndex.decode(0, bytes(10_485_760), LOG_SIZE)) == 0
    assert len(TimeIndex.decode(0, bytes(10_485_756))) == 0
    offsets.append(9, 4200)
    times.maybe_append(1000, 9)
    assert len(OffsetIndex.decode(0, offsets.encode() + bytes(8000), LOG_SIZE)) == 1
    assert len(TimeIndex.decode(0, times.encode() + bytes(12000))) == 1


def test_entries_past_the_log_and_torn_ones_are_dropped() -> None:
    index = OffsetIndex(0)
    index.append(9, 100)
    index.append(19, 200)
    assert len(OffsetIndex.decode(0, index.encode(), 200)) == 1
    assert len(OffsetIndex.decode(0, index.encode()[:-1], LOG_SIZE)) == 1


@given(
    steps=st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 10_000)), max_size=50),
    base_offset=st.integers(0, 2**40),
    cut=st.integers(0, 60_000),
)
def test_index_entries_come_back_from_their_bytes_and_are_cut_by_offset(
    steps: list[tuple[int, int]], base_offset: int, cut: int
) -> None:
    offsets, times = OffsetIndex(base_offset), TimeIndex(base_offset)
    offset, position, timestamp = base_offset, 0, 0
    for more_offsets, more_bytes in steps:
        offset, position, timestamp = offset + more_offsets, position + more_bytes, timestamp + 7
        offsets.append(offset, position)
        times.maybe_append(timestamp, offset)
    assert OffsetIndex.decode(base_offset, offsets.encode(), LOG_SIZE).encode() == offsets.encode()
    assert TimeIndex.decode(base_offset, times.encode()).encode() == times.encode()
    below = sum(sum(step[0] for step in steps[: i + 1]) < cut for i in range(len(steps)))
    offsets.truncate(base_offset + cut)
    times.truncate(base_offset + cut)
    assert len(offsets) == len(times) == below


@given(data=st.binary(max_size=400))
def test_garbage_is_no_reason_to_fail(data: bytes) -> None:
    offsets = OffsetIndex.decode(0, data, LOG_SIZE)
    assert offsets.lookup(10**9) >= 0
    times = TimeIndex.decode(0, data)
    assert times.lookup(10**15) >= 0
