"""Frames come out whole and in order however the bytes arrive, and announced bytes cost nothing."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.runtime.turns import Turns
from magnetar.server.frames import (
    MAPPED_BYTES,
    SHARED_BUFFER_BYTES,
    SHORT_BUFFER_BYTES,
    FrameReader,
    SharedBuffer,
)
from magnetar.server.memory import PROGRESS_BYTES_MIN, SMALL_PARTIAL_BYTES, RequestMemory

MAX_BYTES = 1 << 20


def reader_of(memory: RequestMemory, max_bytes: int = MAX_BYTES) -> FrameReader:
    return FrameReader(SharedBuffer(), memory, max_bytes)


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    frames = []
    while data:
        buffer = reader.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        frames += [bytes(frame) for frame in reader.received(count)]
        data = data[count:]
    return frames


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=20_000), max_size=5),
    cuts=st.lists(st.integers(1, 9_000), min_size=1),
)
def test_frames_come_out_as_sent_however_the_bytes_are_cut(
    bodies: list[bytes], cuts: list[int]
) -> None:
    memory = RequestMemory(-1)
    reader = reader_of(memory)
    stream = b"".join(map(framed, bodies))
    received: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        end = position + cuts[turn % len(cuts)]
        received += feed(reader, stream[position:end])
        position = end
        turn += 1
    assert received == bodies
    assert memory.partial_bytes == 0


def test_little_is_received_at_once_while_connections_wait_for_a_turn() -> None:
    shared = SharedBuffer()
    turns = Turns()
    turns.on_queue = shared.shorten
    reader = FrameReader(shared, RequestMemory(-1), MAX_BYTES)
    sizes = []

    async def story() -> None:
        sizes.append(len(reader.buffer()))
        for _ in range(2):
            turns.later(lambda: sizes.append(len(reader.buffer())))
        sizes.append(len(reader.buffer()))
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(story())
    # The second one that waits has no other behind it.
    whole, short = SHARED_BUFFER_BYTES, SHORT_BUFFER_BYTES
    assert sizes == [whole, short, short, whole]


def test_a_frame_larger_than_the_shared_buffer_is_received() -> None:
    body = bytes(range(256)) * 3000
    assert feed(reader_of(RequestMemory(-1)), framed(body) + framed(b"next")) == [body, b"next"]


@pytest.mark.parametrize("size", [-1, 0, -(2**31), MAX_BYTES + 1, 2**31 - 1])
def test_a_size_no_request_may_have_is_refused_before_anything_is_allocated(size: int) -> None:
    memory = RequestMemory(-1)
    reader = reader_of(memory)
    assert feed(reader, framed(b"before") + struct.pack(">i", size) + b"after") == [b"before", b""]
    assert str(size) in str(reader.error)
    assert memory.partial_bytes == 0
    assert feed(reader, framed(b"later")) == []


@pytest.mark.parametrize(
    ("data", "protocol"),
    [
        (b"GET /metrics HTTP/1.1", "HTTP"),
        (b"OPTIONS / HTTP/1.1", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
    ],
)
def test_another_protocol_is_named(data: bytes, protocol: str) -> None:
    reader = reader_of(RequestMemory(-1))
    assert feed(reader, data) == [b""]
    assert str(reader.error).startswith(f"it speaks {protocol}")


def test_announcing_a_hundred_megabytes_costs_what_was_sent() -> None:
    memory = RequestMemory(-1)
    readers = [reader_of(memory, 104857600) for _ in range(200)]
    for reader in readers:
        feed(reader, struct.pack(">i", 100_000_000) + b"x" * 100)
        reader.buffer()
    assert memory.partial_bytes <= 200 * 4096
    for reader in readers:
        reader.discard()
    assert memory.partial_bytes == 0


def test_a_frame_of_megabytes_counts_what_has_arrived_of_it() -> None:
    memory = RequestMemory(-1)
    reader = reader_of(memory, 104857600)
    body = bytes(range(256)) * (4 * MAPPED_BYTES // 256)
    stream = framed(body)
    half = len(stream) // 2
    assert feed(reader, stream[:half]) == []
    assert len(reader.buffer()) > MAPPED_BYTES
    assert half - 4 <= memory.partial_bytes <= half
    assert feed(reader, stream[half:]) == [body]
    assert memory.partial_bytes == 0


def test_each_frame_has_memory_of_its_own() -> None:
    reader = reader_of(RequestMemory(-1))
    buffer = reader.buffer()
    data = framed(b"first") + framed(b"second")
    buffer[: len(data)] = data
    first, second = reader.received(len(data))
    reader.buffer()[:100] = bytes(100)
    first[:] = b"FIRST"
    assert (bytes(first), bytes(second)) == (b"FIRST", b"second")


def test_beside_half_requests_over_the_limit_each_connection_takes_little() -> None:
    """Each kept a first read of 256 KB and room for four times that, however many they were."""
    memory = RequestMemory(100)
    memory.resize_partial(101)
    readers = [reader_of(memory, 104857600) for _ in range(200)]
    for reader in readers:
        data = struct.pack(">i", 100_000_000) + bytes(SHARED_BUFFER_BYTES)
        buffer = reader.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        assert reader.received(count) == []
        assert reader.is_receiving
    assert memory.partial_bytes - 101 <= 200 * SMALL_PARTIAL_BYTES


def test_a_small_request_that_comes_in_pieces_is_not_told_from_a_whole_one() -> None:
    reader = reader_of(RequestMemory(-1))
    feed(reader, framed(bytes(SMALL_PARTIAL_BYTES))[:100])
    assert not reader.is_receiving
    reader.discard()
    feed(reader, framed(bytes(SMALL_PARTIAL_BYTES + 1))[:100])
    assert reader.is_receiving


class FakeReceiver:
    def __init__(self, *, holds_partial: bool = True) -> None:
        self.holds_partial = holds_partial
        self.received_bytes = 0
        self.is_held_up = False
        self.resumed = 0

    def resume_memory(self) -> None:
        self.resumed += 1


def give_back_in_flight(memory: RequestMemory, size_bytes: int) -> None:
    """Do as a connection does."""
    memory.in_flight_bytes -= size_bytes
    if memory.waiting:
        memory.wake()


def test_over_the_limit_of_work_in_flight_reading_waits_for_answers() -> None:
    memory = RequestMemory(100)
    receiver = FakeReceiver(holds_partial=False)
    memory.in_flight_bytes += 101
    assert not memory.may_read(receiver)
    give_back_in_flight(memory, 50)
    assert receiver.resumed == 1
    assert memory.may_read(receiver)


def test_what_was_freed_while_too_much_was_in_flight_wakes_those_that_waited_for_it() -> None:
    """They were not read for as long as they lived."""
    memory = RequestMemory(100)
    first, second = FakeReceiver(), FakeReceiver()
    memory.resize_partial(200)
    assert memory.may_read(first)
    assert not memory.may_read(second)
    memory.in_flight_bytes += 101
    memory.resize_partial(-200)
    assert second.resumed == 0
    give_back_in_flight(memory, 101)
    assert second.resumed == 1


def test_a_request_that_is_whole_hands_the_favour_on_at_once() -> None:
    """The next one waited for the sweep: one large request was received in a second."""
    memory = RequestMemory(SMALL_PARTIAL_BYTES)
    reader = reader_of(memory)

    class Favoured(FakeReceiver):
        @property
        def holds_partial(self) -> bool:
            return reader.is_receiving

        @holds_partial.setter
        def holds_partial(self, holds_partial: bool) -> None: ...

    waiting = FakeReceiver()
    memory.resize_partial(2 * SMALL_PARTIAL_BYTES)
    feed(reader, framed(bytes(50_000))[:40_000])
    assert memory.may_read(Favoured())
    assert not memory.may_read(waiting)
    assert feed(reader, bytes(10_004)) == [bytes(50_000)]
    assert waiting.resumed == 1


def test_over_the_limit_of_half_requests_one_at_a_time_goes_on() -> None:
    memory = RequestMemory(100)
    first, second, small = FakeReceiver(), FakeReceiver(), FakeReceiver(holds_partial=False)
    memory.resize_partial(200)
    assert memory.may_read(first)
    assert not memory.may_read(second)
    assert memory.may_read(small)
    memory.forget(first)
    assert second.resumed == 1
    assert memory.may_read(second)


def test_thousands_that_wait_are_not_asked_while_one_alone_may_go_on() -> None:
    """Each request that was received whole asked all of them, in one step of the event loop."""
    memory = RequestMemory(100)
    favoured, *waiting = [FakeReceiver() for _ in range(1000)]
    memory.resize_partial(1000)
    assert memory.may_read(favoured)
    assert not any(map(memory.may_read, waiting))
    memory.resize_partial(-1)
    assert not any(receiver.resumed for receiver in waiting)
    memory.resize_partial(-900)
    assert all(receiver.resumed == 1 for receiver in waiting)


def test_who_has_sent_its_request_whole_is_not_favoured_any_more() -> None:
    memory = RequestMemory(100)
    first, second, third = FakeReceiver(), FakeReceiver(), FakeReceiver()
    memory.resize_partial(300)
    assert memory.may_read(first)
    assert not memory.may_read(second)
    first.holds_partial = False
    memory.resize_partial(-100)
    assert second.resumed == 1
    assert memory.may_read(second)
    assert not memory.may_read(third)


def test_who_owes_nothing_is_never_overdue() -> None:
    memory = RequestMemory(100)
    favoured, waiting = FakeReceiver(), FakeReceiver()
    memory.resize_partial(300)
    assert memory.may_read(favoured)
    assert not memory.may_read(waiting)
    assert memory.overdue() is None
    favoured.holds_partial = False
    assert memory.overdue() is None
    assert waiting.resumed == 1
    assert memory.may_read(waiting)


def test_the_favoured_connection_is_overdue_when_it_sends_little() -> None:
    memory = RequestMemory(100)
    slow = FakeReceiver()
    memory.resize_partial(200)
    assert memory.may_read(slow)
    assert memory.overdue() is None
    slow.received_bytes += PROGRESS_BYTES_MIN
    assert memory.overdue() is None
    slow.received_bytes += 1
    assert memory.overdue() is slow


def test_who_is_kept_from_sending_by_requests_in_flight_is_not_overdue() -> None:
    memory = RequestMemory(100)
    favoured = FakeReceiver()
    memory.resize_partial(200)
    assert memory.may_read(favoured)
    memory.in_flight_bytes += 101
    assert not memory.may_read(favoured)
    assert [memory.overdue() for _ in range(3)] == [None, None, None]
    give_back_in_flight(memory, 101)
    assert memory.may_read(favoured)
    assert memory.overdue() is None
    assert memory.overdue() is favoured


def test_who_waits_for_a_turn_of_the_event_loop_or_is_muted_is_not_overdue() -> None:
    """The broker does not read it at present: it cannot send."""
    memory = RequestMemory(100)
    favoured = FakeReceiver()
    memory.resize_partial(200)
    assert memory.may_read(favoured)
    favoured.is_held_up = True
    assert [memory.overdue() for _ in range(3)] == [None, None, None]
    favoured.is_held_up = False
    assert memory.overdue() is None
    assert memory.overdue() is favoured
