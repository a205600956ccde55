"""A transport with TLS gets no more than its client takes, and all of it in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.server.pacing import PIECE_BYTES, PacedTransport, paced


class FakeTransport(asyncio.Transport):
    """Takes what is written; `room_bytes` of it are gone at once, as into the one below."""

    def __init__(self, room_bytes: int, *, is_encrypted: bool = True) -> None:
        super().__init__({"ssl_object": object()} if is_encrypted else {})
        self.room_bytes = room_bytes
        self.written: list[bytes] = []
        self.unread_bytes = 0
        self.ends: list[str] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == PIECE_BYTES

    def write(self, data: Any) -> None:
        assert not self.ends
        self.written.append(bytes(data))
        self.unread_bytes += len(data)
        self.read(0)

    def read(self, room_bytes: int) -> None:
        """The client reads on."""
        self.room_bytes += room_bytes
        taken_bytes = min(self.room_bytes, self.unread_bytes)
        self.room_bytes -= taken_bytes
        self.unread_bytes -= taken_bytes

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def close(self) -> None:
        self.ends.append("closed")

    def is_closing(self) -> bool:
        return bool(self.ends)

    def abort(self) -> None:
        self.ends.append("aborted")


def test_only_a_transport_with_tls_is_paced() -> None:
    plain = FakeTransport(0, is_encrypted=False)
    assert paced(plain) is plain
    assert isinstance(paced(FakeTransport(0)), PacedTransport)


@pytest.mark.parametrize("sizes", [[10 * PIECE_BYTES + 7], [100] * 5000, [3 * PIECE_BYTES, 5] * 3])
def test_what_has_no_room_waits_and_follows_in_order(sizes: list[int]) -> None:
    buffers = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    whole = b"".join(buffers)
    below = FakeTransport(PIECE_BYTES)
    transport = PacedTransport(below)
    transport.writelines(buffers)
    written = len(b"".join(below.written))
    # One piece below, and what has no room, which may begin with a short piece.
    assert written < 3 * PIECE_BYTES
    assert transport.get_write_buffer_size() == len(whole) - PIECE_BYTES
    while not transport.go_on():
        below.read(PIECE_BYTES)
    assert b"".join(below.written) == whole
    assert max(map(len, below.written)) <= PIECE_BYTES
    assert len(below.written) <= len(whole) // PIECE_BYTES * 2 + 2


def test_the_last_piece_may_fill_the_transport_again() -> None:
    """The connection read on, and its account was empty: what it answered then had no bound."""
    below = FakeTransport(0)
    transport = PacedTransport(below)
    transport.write(b"x" * (2 * PIECE_BYTES))
    below.read(PIECE_BYTES)
    assert not transport.go_on() and below.unread_bytes == PIECE_BYTES
    below.read(PIECE_BYTES)
    assert transport.go_on()


def test_a_close_waits_for_what_waits_and_an_abort_does_not() -> None:
    below = FakeTransport(0)
    transport = PacedTransport(below)
    transport.write(b"x" * (2 * PIECE_BYTES))
    transport.close()
    assert transport.is_closing() and not below.ends
    below.read(PIECE_BYTES)
    transport.go_on()
    transport.close()
    assert below.ends == ["closed"] and len(b"".join(below.written)) == 2 * PIECE_BYTES

    below = FakeTransport(0)
    transport = PacedTransport(below)
    transport.write(b"x" * (2 * PIECE_BYTES))
    transport.abort()
    assert below.ends == ["aborted"] and transport.get_write_buffer_size() == PIECE_BYTES


def test_what_is_known_of_the_transport_below_is_known() -> None:
    """A slow client with TLS counted as one that had stopped while its socket was full."""
    below = FakeTransport(0)
    assert paced(below).get_extra_info("ssl_object") is below.get_extra_info("ssl_object")
