"""Buffers that are not cleared are buffers like any other."""

from __future__ import annotations

import pytest

from logstore.disk.linux import uncleared


@pytest.mark.parametrize("size_bytes", [0, 1, 32 * 1024 - 1, 32 * 1024, 1 << 20])
def test_an_uncleared_buffer_has_its_size_and_takes_bytes(size_bytes: int) -> None:
    buffer = uncleared(size_bytes)
    assert type(buffer) is bytearray and len(buffer) == size_bytes
    written = bytes(index % 251 for index in range(size_bytes))
    buffer[:] = written
    assert buffer == written
    buffer += b"more"
    assert buffer == written + b"more"


def test_a_buffer_larger_than_any_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        uncleared(2**62)
