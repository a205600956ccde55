"""Frames between nodes: a size, Kafka's request or response header, a message.

Both sides write the headers, so they are of one shape: the client id is `peer`, no field is tagged.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, TypeVar

from wire.errors import WireError
from wire.message import Message

M = TypeVar("M", bound=Message)

_SIZE = Struct(">i")
#: Size, API key, version, correlation id, length of the client id, client id.
_REQUEST = Struct(">ihhih4s")
#: Without the size.
_REQUEST_HEADER = Struct(">hhih4s")
_CLIENT_ID = b"peer"
#: Size, correlation id.
_RESPONSE = Struct(">ii")
#: What ends a header of a flexible version: it has no tagged field.
_NO_TAGS = b"\0"
#: No frame between nodes is larger: a batch of requests is split long before.
FRAME_BYTES_MAX = 64 << 20
#: What a stranger may send before it has proven itself.
STRANGER_BYTES_MAX = 4 << 10


#: How every record of TLS begins: an alert or a handshake, of a version 3.x.
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")


class UnexpectedTls(WireError):
    """The other side speaks TLS, and this one does not."""

    def __init__(self) -> None:
        super().__init__(
            "it speaks TLS, and this node does not: security.inter.broker.protocol must be the"
            " same on all nodes"
        )


class RequestHead(NamedTuple):
    """What a request's frame says before its body."""

    api_key: int
    version: int
    correlation_id: int


class FrameSplitter:
    """Cuts what arrives into frames."""

    __slots__ = ("_bytes", "bytes_max")

    def __init__(self) -> None:
        #: No frame is larger. Raised once the other side is known.
        self.bytes_max = STRANGER_BYTES_MAX
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Return the frames that are whole. Raises WireError for one that is too large."""
        received = self._bytes
        received += data
        frames: list[bytes] = []
        start, length = 0, len(received)
        while length - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(received, start)
            if not 0 < size <= self.bytes_max:
                if received[start : start + 2] in _TLS_RECORDS:
                    raise UnexpectedTls
                raise WireError(f"a frame of {size} bytes, at most {self.bytes_max} are read")
            end = start + _SIZE.size + size
            if length < end:
                break
            frames.append(bytes(received[start + _SIZE.size : end]))
            start = end
        del received[:start]
        return frames


def encode_request(request: Message, version: int, correlation_id: int) -> bytes:
    """Return a request's frame, with its size."""
    body = request.encode(version)
    tags = _NO_TAGS if _is_flexible(request, version) else b""
    size = _REQUEST_HEADER.size + len(tags) + len(body)
    head = _REQUEST.pack(
        size, request.api_key, version, correlation_id, len(_CLIENT_ID), _CLIENT_ID
    )
    return b"".join((head, tags, body))


def request_head(frame: bytes) -> RequestHead:
    """Return the head of a request's frame. Raises WireError."""
    if len(frame) < _REQUEST_HEADER.size:
        raise WireError(f"{len(frame)} bytes are no request of a node")
    api_key, version, correlation_id, length, client_id = _REQUEST_HEADER.unpack_from(frame)
    if length != len(_CLIENT_ID) or client_id != _CLIENT_ID:
        raise WireError("it is no node's request")
    return RequestHead(api_key, version, correlation_id)


def decode_request(frame: bytes, request_class: type[M], version: int) -> M:
    """Return the body of a request's frame, whose head was read. Raises WireError."""
    return _body(frame, _REQUEST_HEADER.size, request_class, version)


def encode_response(response: Message, version: int, correlation_id: int) -> bytes:
    """Return a response's frame, with its size."""
    body = response.encode(version)
    tags = _NO_TAGS if _is_flexible(response, version) else b""
    size = _RESPONSE.size - _SIZE.size + len(tags) + len(body)
    return b"".join((_RESPONSE.pack(size, correlation_id), tags, body))


def correlation_id_of(response_frame: bytes) -> int:
    """Return which request a response's frame answers. Raises WireError."""
    if len(response_frame) < _SIZE.size:
        raise WireError(f"{len(response_frame)} bytes are no response of a node")
    return int.from_bytes(response_frame[: _SIZE.size], "big", signed=True)


def decode_response(frame: bytes, response_class: type[M], version: int) -> M:
    """Return the body of a response's frame. Raises WireError."""
    return _body(frame, _SIZE.size, response_class, version)


def _body(frame: bytes, start: int, message_class: type[M], version: int) -> M:
    if _is_flexible(message_class, version):
        if frame[start : start + 1] != _NO_TAGS:
            raise WireError("a node tags no field of a header")
        start += 1
    return message_class.decode(memoryview(frame)[start:], version)


def _is_flexible(message: Message | type[Message], version: int) -> bool:
    """Return whether fields of the message, and of the header before it, may be tagged."""
    since = message.flexible_since
    return since is not None and version >= since
