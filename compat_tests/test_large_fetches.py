"""Answers of megabytes, also to clients that read them slowly: every byte is right.

magnetar sends them from its files where it can (docs/decisions/0088-sendfile.md).
"""

from __future__ import annotations

import os
import socket
import struct
import time

import pytest

from compat_tests.brokers import Broker
from compat_tests.conftest import MakeTopic
from compat_tests.raw import Connection, batch

#: A batch's magic, which follows its base offset, its length and the leader epoch: the broker sets
#: the first and the last of these.
_MAGIC_AT = 16
_BATCHES, _BATCH_BYTES = 8, 700_000
_PIECE_BYTES, _PAUSE_S = 1 << 16, 0.005


class SlowReader(Connection):
    """A client with a small window, which pauses before each piece that it reads."""

    def _exactly(self, size: int) -> bytes:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE_BYTES)
        if size <= _PIECE_BYTES:
            return super()._exactly(size)
        pieces = []
        for left in range(size, 0, -_PIECE_BYTES):
            time.sleep(_PAUSE_S)  # This is what makes it slow.
            pieces.append(super()._exactly(min(left, _PIECE_BYTES)))
        return b"".join(pieces)


@pytest.fixture
def written(broker: Broker, topic: MakeTopic) -> tuple[str, list[bytes]]:
    """A topic, and the batches that its first partition has."""
    name = topic("large")
    batches = [batch([os.urandom(_BATCH_BYTES)]) for _ in range(_BATCHES)]
    with Connection(broker.bootstrap) as client:
        for offset, each in enumerate(batches):
            assert client.produce(name, each).base_offset == offset
    return name, batches


def _whole(batches: list[bytes], records: bytes, offset: int) -> int:
    """Return how many whole batches `records` are: those from `offset` on, and nothing else.

    Kafka may end with a part of one.
    """
    at = count = 0
    for number, each in enumerate(batches[offset:]):
        found = records[at : at + len(each)]
        if found:
            assert struct.unpack(">q", found[:8]) == (offset + number,)
        assert found[_MAGIC_AT:] == each[_MAGIC_AT : len(found)]
        at += len(found)
        count += len(found) == len(each)
    assert at == len(records)
    return count


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("max_bytes", [1, 1_500_000, 50_000_000])
@pytest.mark.parametrize("reader", [Connection, SlowReader])
def test_every_byte_of_a_large_answer_is_right(
    broker: Broker,
    written: tuple[str, list[bytes]],
    reader: type[Connection],
    max_bytes: int,
    isolation: int,
) -> None:
    topic, batches = written
    offset = 0
    with reader(broker.bootstrap) as client:
        while offset < len(batches):
            found = client.fetch(topic, offset, isolation=isolation, max_bytes=max_bytes)
            count = _whole(batches, bytes(found.records), offset)
            assert 1 <= count <= max(max_bytes // _BATCH_BYTES, 1)
            offset += count
