"""The cleaner's own process: `LocalPasses`, asked for over a socket.

The broker starts one for a run over a large log (`logstore.cleaner.process`). It has that socket
for its standard input, and gets the files it reads and writes as descriptors, one segment at a
time. It knows no path, and holds nothing else of the broker's: no socket, no lock.

A frame is the length of what follows (uint32, little endian) and a pickled value. Both ends are of
one version. A request is (a method's name, arguments), with the descriptors of its files; a `Word`
is what the process says: again and again while it works, and last with the request's result. Each
`Word` before the last is answered by an empty frame. The next one waits for that answer, and so the
broker sets the pace. When the broker is gone, the socket says so, and the process ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import Any, NamedTuple

from logstore.cleaner.batches import CleaningPlan
from logstore.cleaner.passes import LocalPasses, MapPlan, Place
from logstore.disk.files import Buffer
from logstore.segments.aborted_index import AbortedEntry
from logstore.segments.segment_copy import SegmentWriter, scanned
from wire.errors import WireError
from wire.records import BATCH_OVERHEAD, BatchHeader

#: The cleaner's process gives way to the broker and its clients if there are too few cores for all.
_NICENESS = 5
#: How many bytes, and how much time, may pass until the process says how far it has come.
_WORD_BYTES = 4 << 20
_WORD_S = 0.1
#: A request's files: the source's, and the target's.
_DESCRIPTORS_MAX = 2

_LENGTH = Struct("<I")


class Word(NamedTuple):
    """How far the process is."""

    is_last: bool
    #: What the request's method returned, or the WireError or OSError that it raised.
    result: Any
    #: The bytes read and written since the last word.
    size_bytes: int
    #: The headers of the batches written since the last word, one behind the other.
    headers: bytes


def send(link: socket.socket, value: object, descriptors: Sequence[int] = ()) -> None:
    """Send a frame. Raises OSError."""
    data = pickle.dumps(value)
    # The descriptors come with the first bytes.
    socket.send_fds(link, [_LENGTH.pack(len(data))], descriptors)
    link.sendall(data)


def receive(link: socket.socket) -> tuple[Any, list[int]]:
    """Return a frame's value and its descriptors. Raises EOFError when the other end is gone."""
    head, descriptors, _, _ = socket.recv_fds(link, _LENGTH.size, _DESCRIPTORS_MAX)
    if not head:
        raise EOFError
    head += _read(link, _LENGTH.size - len(head))
    data = _read(link, *_LENGTH.unpack(head))
    return pickle.loads(data), descriptors  # noqa: S301  # no third process has the socket


def _read(link: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = link.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _PassedFile:
    """A file of the broker's. Its bytes, and nothing else."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        # Nearly every read is whole, or at the file's end.
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        rest = memoryview(b"".join(buffers))
        while rest:
            written = os.pwrite(self._descriptor, rest, position)
            rest, position = rest[written:], position + written

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class _PassedSource:
    """A sealed segment's file, being read."""

    def __init__(self, file: _PassedFile, size_bytes: int) -> None:
        self.batches = lambda: scanned(file, size_bytes)


class _Worker:
    """The passes, and the new segment's file. Its methods are what a request may name."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._passes: LocalPasses | None = None
        self._target: _PassedFile | None = None
        self._writer: SegmentWriter | None = None
        self._size_bytes = 0
        self._headers = bytearray()
        self._said_at = time.monotonic()
        self._is_unanswered = False

    # Requests

    def begin(self, plan: MapPlan) -> None:
        self._passes = LocalPasses(plan, self._pause)

    def map_segment(self, place: Place, source: _PassedFile) -> int | None:
        return self._begun.map_segment(place, _PassedSource(source, place.size_bytes))

    def begin_cleaning(self, plan: CleaningPlan) -> int:
        return self._begun.begin_cleaning(plan)

    def clean_segment(
        self, place: Place, is_last: bool, source: _PassedFile, target: _PassedFile
    ) -> tuple[bool, int]:
        if self._target is None:
            self._target, self._writer = target, SegmentWriter(target)
        else:
            target.close()
        found = _PassedSource(source, place.size_bytes)
        return self._begun.clean_segment(place, found, self, is_last=is_last)

    def end_group(self) -> list[AbortedEntry]:
        assert self._writer is not None and self._target is not None
        self._writer.flush()
        self._target.close()
        self._target = self._writer = None
        return self._begun.end_group()

    # What the passes call

    def append(self, batch: Buffer, header: BatchHeader) -> None:
        assert self._writer is not None
        self._writer.append(batch)
        self._headers += batch[:BATCH_OVERHEAD]

    def _pause(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        if self._size_bytes >= _WORD_BYTES or time.monotonic() - self._said_at >= _WORD_S:
            self.say(is_last=False)

    @property
    def _begun(self) -> LocalPasses:
        assert self._passes is not None, "the first request is `begin`"
        return self._passes

    def say(self, *, is_last: bool, result: object = None) -> None:
        """Say how far the process is, once the broker has answered what was said before."""
        if self._is_unanswered:
            receive(self._link)
        send(self._link, Word(is_last, result, self._size_bytes, bytes(self._headers)))
        self._is_unanswered = not is_last
        self._size_bytes, self._said_at = 0, time.monotonic()
        self._headers.clear()


def serve(link: socket.socket) -> None:
    """Do what the broker asks for. Raises EOFError, or OSError, when the broker is gone."""
    worker = _Worker(link)
    worker.say(is_last=True)  # It is there.
    while True:
        (name, arguments), descriptors = receive(link)
        files = [_PassedFile(descriptor) for descriptor in descriptors]
        result: object
        try:
            result = getattr(worker, name)(*arguments, *files)
        except (WireError, OSError) as error:
            result = error
        if files:
            files[0].close()
        worker.say(is_last=True, result=result)


def main() -> None:
    """Serve the broker at the other end of the standard input."""
    # A terminal's interrupt is for the broker, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(_NICENESS)
    with suppress(EOFError, ConnectionError), socket.socket(fileno=0) as link:
        serve(link)
