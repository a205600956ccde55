"""The byte stream of a connection, cut into frames: a 4-byte size, then that many bytes.

Sans I/O. Bytes arrive in a buffer that all connections share. Whole frames are copied out of it;
the rest of a frame that is not whole is received straight into a buffer of the frame's own. That
buffer is at most four times as large as the bytes that have arrived, so an announced size costs
nothing. From `MAPPED_BYTES` on the buffer has its whole size at once, but no memory until bytes
arrive: to copy and to clear megabytes would hold the event loop. Each frame is a buffer of its own:
a handler may keep views of it and write into it.
"""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct

from logstore.disk.linux import uncleared
from magnetar.server.memory import SMALL_PARTIAL_BYTES, RequestMemory
from wire.errors import WireError

SIZE_BYTES = 4
SHARED_BUFFER_BYTES = 256 * 1024
#: Holds any of the small requests. Receiving so much takes some microseconds.
SHORT_BUFFER_BYTES = 4096
MAPPED_BYTES = 2 << 20
#: Decoding a longer request may take 0.1 ms and more.
_LONG_FROM_BYTES = 1024
_PRODUCE_BYTES = b"\x00\x00"
_PARTIAL_BYTES_MIN = 4096
_GROWTH = 4
#: Half requests have memory of their own beyond this part of what they may hold, from this size on.
#: So it goes back with them: of what lies between other memory the C library gives nothing back.
_USUAL_PART = 8
_OWN_MEMORY_BYTES = 32 * 1024
#: How a TLS handshake begins: record type and major version.
_TLS_HELLO = 0x1603
#: How requests of HTTP begin: of a browser, a health check, Prometheus.
_HTTP_METHODS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI")
_SIZE = Struct(">i")

Frame = bytearray | memoryview


def is_long(frame: Frame) -> bool:
    """Return whether a request may take long to decode. One of Produce has few elements for its
    bytes, and what they take is asked about between its batches."""
    return len(frame) > _LONG_FROM_BYTES and bytes(frame[:2]) != _PRODUCE_BYTES


class SharedBuffer:
    """Where all connections receive, each between a `buffer` and its `received` only.

    It is short while connections wait for a turn: hundreds that send much at once are all received
    in one step of the event loop, each of them once. So it is for a connection that begins a
    request while those of others hold too much memory.
    """

    __slots__ = ("short", "view", "whole")

    def __init__(self) -> None:
        #: What is received begins at its first byte in any case.
        self.whole = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.short = self.whole[:SHORT_BUFFER_BYTES]
        self.view = self.whole

    def shorten(self, is_short: bool) -> None:
        """Hand out the short buffer from now on, or the whole one."""
        self.view = self.short if is_short else self.whole


class FrameReader:
    """One connection's half-received frame. Call `buffer`, fill it, call `received`, repeat."""

    __slots__ = (
        "_filled",
        "_head",
        "_held",
        "_memory",
        "_shared",
        "_size",
        "error",
        "frame_bytes_max",
        "partial",
    )

    def __init__(self, shared: SharedBuffer, memory: RequestMemory, max_bytes: int) -> None:
        self._shared = shared
        self._memory = memory
        self.frame_bytes_max = max_bytes
        self._head = b""  # the first bytes of a size, fewer than 4
        #: A frame that has begun to arrive and is not whole.
        self.partial: Frame | None = None
        self._held = 0  # what the frame takes of the memory, at least what has arrived
        self._filled = 0
        self._size = 0
        #: Set when the stream has a size that no request may have: no more frames come.
        self.error: WireError | None = None

    @property
    def is_receiving(self) -> bool:
        """Whether a request that is not small has begun to arrive, and is not whole."""
        return self.partial is not None and self._size > SMALL_PARTIAL_BYTES

    def buffer(self, sizehint: int = -1) -> memoryview:
        """Return where the next bytes go; never empty. Fits `BufferedProtocol.get_buffer`."""
        frame = self.partial
        if frame is None:
            memory, shared = self._memory, self._shared
            # Not `is_crowded`, which would be a call for each request.
            return shared.view if memory.partial_bytes <= memory.limit_bytes else shared.short
        if self._filled == len(frame):
            frame = self._grow(frame)
        return memoryview(frame)[self._filled :]

    def received(self, count: int) -> list[Frame]:
        """Return the frames that the `count` bytes now in the buffer complete, in order.

        A size that no request may have is returned as an empty frame, the last one; `error` says
        which size. So the frames before it are not lost with it.
        """
        if self.error is not None:
            return []
        if self.partial is not None:
            return self._continue(self.partial, count)
        data = self._shared.whole
        if self._head:
            data = memoryview(self._head + data[:count])
            self._head = b""
            count = len(data)
        frames: list[Frame] = []
        position = 0
        while count - position >= SIZE_BYTES:
            (size,) = _SIZE.unpack_from(data, position)
            if not 0 < size <= self.frame_bytes_max:
                self.error = WireError(_refusal(size, self.frame_bytes_max))
                frames.append(bytearray())
                return frames
            position += SIZE_BYTES
            end = position + size
            if end > count:
                self._begin(size, data[position:count])
                return frames
            frames.append(bytearray(data[position:end]))
            position = end
        if position < count:
            self._head = bytes(data[position:count])
        return frames

    def discard(self) -> None:
        """Forget a half-received frame."""
        self.partial = None
        self._head = b""
        # Last: it wakes others, which ask whether this connection still holds a partial request.
        self._hold(0)

    def _continue(self, frame: Frame, count: int) -> list[Frame]:
        self._filled += count
        if self._filled < self._size:
            if self._filled > self._held:
                self._hold(self._filled)
            return []
        self.discard()
        return [frame]

    def _begin(self, size: int, start: memoryview) -> None:
        self._size = size
        self._filled = len(start)
        frame = self.partial = self._room(self._capacity())
        frame[: self._filled] = start
        self._hold(len(frame))

    def _capacity(self) -> int:
        # Of one that is read from the short buffer: SMALL_PARTIAL_BYTES.
        return min(self._size, max(_PARTIAL_BYTES_MIN, _GROWTH * self._filled))

    def _grow(self, frame: Frame) -> Frame:
        # A new buffer, not a resized one: the event loop may still hold a view of the old.
        capacity = self._capacity()
        is_whole = capacity > MAPPED_BYTES
        grown = _mapped(self._size) if is_whole else self._room(capacity)
        grown[: self._filled] = frame
        self._hold(self._filled if is_whole else capacity)
        self.partial = grown
        return grown

    def _room(self, capacity: int) -> Frame:
        is_usual = self._memory.partial_bytes <= self._memory.limit_bytes // _USUAL_PART
        is_own = capacity >= _OWN_MEMORY_BYTES and not is_usual
        return _mapped(capacity) if is_own else uncleared(capacity)

    def _hold(self, size_bytes: int) -> None:
        self._memory.resize_partial(size_bytes - self._held)
        self._held = size_bytes


def _mapped(size_bytes: int) -> memoryview:
    # Private, which Python's default is not: 100 MB of shared memory take 20 ms to be given back in
    # one go, private memory 8.
    return memoryview(mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS))


def _refusal(size: int, bytes_max: int) -> str:
    if size >> 16 == _TLS_HELLO:
        return "it speaks TLS, and this listener does not: is its port or security.protocol wrong?"
    if size.to_bytes(4, "big", signed=True) in _HTTP_METHODS:
        return "it speaks HTTP, and this port speaks Kafka's protocol: metrics.listen has HTTP"
    return f"a frame of {size} bytes; 1 to {bytes_max} are accepted"
