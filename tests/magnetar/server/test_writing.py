"""Answers with parts of files: what the socket takes goes at once, the rest waits, all in order."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore.disk.file_range import FileRange
from magnetar.server.pacing import PacedTransport
from magnetar.server.writing import Answer, FileCut, write
from tests.magnetar.server.test_pacing import FakeTransport

SIZE = 1 << 17
DATA = os.urandom(SIZE)


class SocketTransport(FakeTransport):
    """A transport over a socket; what it is given itself is kept, as if the loop had no time."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(0, is_encrypted=False)
        self._socket = sock

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket if name == "socket" else default

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)


class Peer:
    """The other end: reads all that comes in a thread."""

    def __init__(self) -> None:
        self.theirs, self.ours = socket.socketpair(socket.AF_UNIX)
        self.ours.setblocking(False)
        self._received: list[bytes] = []
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while data := self.theirs.recv(1 << 16):
            self._received.append(data)

    def received(self) -> bytes:
        self.ours.close()
        if self._thread.ident is None:
            self._thread.start()
        self._thread.join()
        return b"".join(self._received)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.received()
    peer.theirs.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    path.write_bytes(DATA)
    return path


def part_of(path: Path, position: int, size: int) -> FileRange:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return FileRange(descriptor, position, size, [])
    finally:
        os.close(descriptor)


def answer_of(path: Path) -> tuple[Answer, bytes]:
    sizes = (60_000, 1, 40_000)
    parts: Answer = [b"head"]
    for number, size in enumerate(sizes):
        parts += [part_of(path, number * 1000, size), b"between %d" % number]
    whole = b"head" + b"".join(
        DATA[number * 1000 :][:size] + b"between %d" % number for number, size in enumerate(sizes)
    )
    return parts, whole


def test_all_that_the_socket_takes_goes_at_once(peer: Peer, path: Path) -> None:
    answer, whole = answer_of(path)
    transport = SocketTransport(peer.ours)
    assert write(transport, answer) == len(whole)
    assert transport.written == []
    assert peer.received() == whole


def test_no_descriptor_has_to_be_left(
    peer: Peer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, whole = answer_of(path)
    left: list[int] = []
    monkeypatch.setattr(os, "dup", lambda _: left.pop())
    assert write(SocketTransport(peer.ours), answer) == len(whole)
    assert peer.received() == whole


def test_the_rest_waits_in_the_transport(peer: Peer, path: Path) -> None:
    answer, whole = answer_of(path)
    transport = SocketTransport(peer.ours)
    peer.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 10)
    assert write(transport, answer) == len(whole)
    sent, waiting = peer.received(), b"".join(transport.written)
    assert sent and waiting and sent + waiting == whole


def test_a_default_timeout_of_sockets_changes_nothing(
    peer: Peer, path: Path, request: pytest.FixtureRequest
) -> None:
    answer, whole = answer_of(path)
    transport = SocketTransport(peer.ours)
    peer.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 10)
    request.addfinalizer(lambda: socket.setdefaulttimeout(None))
    socket.setdefaulttimeout(0.001)
    # The head fills the socket by itself: what a timeout is for.
    answer[0] = head = bytes(1 << 20)
    assert write(transport, answer) == len(whole) - len(b"head") + len(head)
    assert transport.ends == []
    assert peer.received() + b"".join(transport.written) == head + whole[len(b"head") :]


def test_nothing_overtakes_what_waits_already(peer: Peer, path: Path) -> None:
    answer, whole = answer_of(path)
    transport = SocketTransport(peer.ours)
    transport.write(b"before")
    assert write(transport, answer) == len(whole)
    assert peer.received() == b""
    assert b"".join(transport.written) == b"before" + whole


def test_what_is_encrypted_is_read(path: Path) -> None:
    answer, whole = answer_of(path)
    below = FakeTransport(1 << 30)
    assert write(PacedTransport(below), answer) == len(whole)
    assert b"".join(below.written) == whole


def test_a_client_that_has_gone_ends_its_connection_alone(peer: Peer, path: Path) -> None:
    answer, whole = answer_of(path)
    peer.theirs.shutdown(socket.SHUT_RDWR)
    transport = SocketTransport(peer.ours)
    assert write(transport, answer) == len(whole)
    assert transport.ends == ["aborted"] and transport.written == []


def test_a_closing_transport_gets_nothing(peer: Peer, path: Path) -> None:
    answer, _ = answer_of(path)
    transport = SocketTransport(peer.ours)
    transport.close()
    write(transport, answer)
    assert peer.received() == b""


def test_where_files_cannot_be_sent_they_are_read(
    peer: Peer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(errno.EINVAL, "This file system has no such operation")

    answer, whole = answer_of(path)
    transport = SocketTransport(peer.ours)
    monkeypatch.setattr(os, "sendfile", refuse)
    assert write(transport, answer) == len(whole)
    assert peer.received() + b"".join(transport.written) == whole


@pytest.mark.parametrize("waits", [False, True])
def test_an_answer_whose_file_was_cut_is_not_made_up(peer: Peer, path: Path, waits: bool) -> None:
    answer, whole = answer_of(path)
    os.truncate(path, 30_000)
    transport = SocketTransport(peer.ours)
    if waits:
        transport.write(b"before")
    with pytest.raises(FileCut):
        write(transport, answer)
    assert whole.startswith(peer.received())


def test_short_answers_are_one_write() -> None:
    transport = FakeTransport(1 << 30, is_encrypted=False)
    assert write(transport, [b"ab", memoryview(b"c"), bytearray(b"de")]) == 5
    assert transport.written == [b"abcde"]
