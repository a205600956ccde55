"""Frames between nodes: a size, Kafka's request or response header, a message."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from wire.errors import WireError
from wire.message import Message
from wire.messages.header import RequestHeader, ResponseHeader

_SIZE = Struct(">i")
#: No frame between nodes is larger: a batch of requests is split long before.
FRAME_BYTES_MAX = 64 << 20
#: What a stranger may send before it has proven itself.
STRANGER_BYTES_MAX = 4 << 10


class FrameSplitter:
    """Cuts what arrives into frames."""

    __slots__ = ("_bytes", "bytes_max")

    def __init__(self, bytes_max: int = STRANGER_BYTES_MAX) -> None:
        #: No frame is larger. Raised once the other side is known.
        self.bytes_max = bytes_max
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return the frames that are whole. Raises WireError for one that is too large."""
        self._bytes += data
        while len(self._bytes) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._bytes)
            if not 0 < size <= self.bytes_max:
                raise WireError(f"a frame of {size} bytes, at most {self.bytes_max} are read")
            end = _SIZE.size + size
            if len(self._bytes) < end:
                return
            frame = bytes(self._bytes[_SIZE.size : end])
            del self._bytes[:end]
            yield frame


def encode_request(request: Message, version: int, correlation_id: int) -> bytes:
    """Return a request's frame, with its size."""
    header = RequestHeader(
        request_api_key=request.api_key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id="peer",
    )
    return _framed(header.encode(request.header_version(version)), request.encode(version))


def encode_response(response: Message, version: int, correlation_id: int) -> bytes:
    """Return a response's frame, with its size."""
    header = ResponseHeader(correlation_id=correlation_id)
    return _framed(header.encode(response.header_version(version)), response.encode(version))


def correlation_id_of(response_frame: bytes) -> int:
    """Return which request a response's frame answers. Raises WireError."""
    header, _ = ResponseHeader.decode_from(response_frame, 0)
    return header.correlation_id


def _framed(header: bytes, body: bytes) -> bytes:
    return b"".join((_SIZE.pack(len(header) + len(body)), header, body))
