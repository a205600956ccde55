"""One connection to one broker: requests and their responses, versions, and what goes wrong.

Not here: which broker a request belongs to (`cluster`), and what responses mean. Nothing is
retried.
"""

from __future__ import annotations

import socket
import time
from struct import Struct
from typing import TypeVar

from wire.api import API_NAMES
from wire.error_code import ErrorCode
from wire.errors import WireError
from wire.message import Message
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.header import RequestHeader, ResponseHeader

#: What brokers log and count this client as, unless its user says otherwise.
CLIENT_ID = "magnetar"
#: No response to this client is larger. A peer that announces more speaks another protocol.
RESPONSE_BYTES_MAX = 256 << 20
_RECEIVE_BYTES = 1 << 20
_CORRELATION_ID_BYTES = 4
_SIZE = Struct(">i")

R = TypeVar("R", bound=Message)
Address = tuple[str, int]


class ClientError(Exception):
    """A request failed; the message is for a person."""


class Unreachable(ClientError):
    """A broker cannot be connected to, or its response did not come. It may be back later."""


class Refused(ClientError):
    """A broker answered with an error code."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        explanation = f" ({message.rstrip('.')})" if message else ""
        super().__init__(f"{what}: {self.code.name}{explanation}")


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise Refused unless `code` is NONE; `message` is the broker's explanation."""
    if code != ErrorCode.NONE:
        raise Refused(code, what, message)


class Connection:
    """One connection to one broker; `call` sends a request and returns the response."""

    def __init__(self, address: Address, timeout_s: float, client_id: str = CLIENT_ID) -> None:
        """Connect and learn the broker's versions. ClientError: no broker of Kafka's protocol."""
        self.address = address
        #: Whether every request so far got its response. If not, the next response on this
        #: connection would be that of an earlier request.
        self.is_usable = True
        self._name = f"{address[0]}:{address[1]}"
        self._timeout_s = timeout_s
        self._client_id = client_id
        self._correlation_id = 0
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise Unreachable(
                f"cannot reach a broker at {self._name}: {error.strerror or error}. Is it running?"
            ) from None
        try:
            # Every broker can answer version 0 of this request.
            response = self._exchange(ApiVersionsRequest(), ApiVersionsResponse, 0)
        except ClientError:
            self.close()
            raise
        # A version that is too new for the broker is answered in version 0 as well (KIP-511), so
        # this list is there even when nothing else is shared.
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }

    def serves(self, request_class: type[Message]) -> bool:
        """Return whether broker and client share a version of this request."""
        lowest, highest = self._versions.get(request_class.api_key, (0, -1))
        return max(lowest, request_class.min_version) <= min(highest, request_class.max_version)

    def version_for(
        self, request_class: type[Message], *, at_least: int = 0, at_most: int | None = None
    ) -> int:
        """Return the highest version that both sides speak. ClientError: none within the bounds."""
        key = request_class.api_key
        lowest, highest = self._versions.get(key, (0, -1))
        version = min(highest, request_class.max_version)
        if at_most is not None:
            version = min(version, at_most)
        if version < max(lowest, request_class.min_version, at_least):
            wanted = f"{API_NAMES[key]} version {at_least}" if at_least else API_NAMES[key]
            raise ClientError(f"the broker at {self._name} does not serve {wanted}.")
        return version

    def call(
        self,
        request: Message,
        response_class: type[R],
        *,
        at_least: int = 0,
        at_most: int | None = None,
        extra_wait_s: float = 0.0,
    ) -> R:
        """Return the response to `request`, sent in the highest version that both sides speak.

        `extra_wait_s` is added to the timeout, for requests that other clients may hold up.
        """
        version = self.version_for(type(request), at_least=at_least, at_most=at_most)
        return self._exchange(request, response_class, version, extra_wait_s)

    def close(self) -> None:
        self._socket.close()

    def _exchange(
        self, request: Message, response_class: type[R], version: int, extra_wait_s: float = 0.0
    ) -> R:
        deadline = time.monotonic() + self._timeout_s + extra_wait_s
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=request.api_key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=self._client_id,
        )
        try:
            body = header.encode(request.header_version(version)) + request.encode(version)
        except WireError as error:
            raise ClientError(f"cannot ask the broker that: {error}") from None
        # Until the whole response has been read: an exception leaves the rest of it in the stream.
        self.is_usable = False
        try:
            frame = self._exchange_frames(body, deadline)
            answered, start = ResponseHeader.decode_from(
                frame, response_class.header_version(version)
            )
            # Responses come in the order of requests, so another id means that the stream is out of
            # step.
            if answered.correlation_id != self._correlation_id:
                raise WireError(f"an answer to request {answered.correlation_id}")
            response = response_class.decode(memoryview(frame)[start:], version)
        except TimeoutError:
            raise Unreachable(
                f"{self._name} did not answer {API_NAMES[request.api_key]} within "
                f"{self._timeout_s + extra_wait_s:g} s."
            ) from None
        except OSError as error:
            raise Unreachable(f"{self._name}: {error.strerror or error}") from None
        except WireError as error:
            raise ClientError(f"{self._name} does not speak Kafka's protocol: {error}") from None
        self.is_usable = True
        return response

    def _exchange_frames(self, body: bytes, deadline: float) -> bytes:
        """Send a request and return the next frame. Raises TimeoutError, OSError, WireError."""
        self._socket.settimeout(self._timeout_s)
        # One send: two would leave as two packets, and the second would wait for the
        # acknowledgement of the first (Nagle's algorithm).
        self._socket.sendall(_SIZE.pack(len(body)) + body)
        (size_bytes,) = _SIZE.unpack(self._receive(_SIZE.size, deadline))
        # Checked before anything is allocated: the peer may not be a broker.
        if not _CORRELATION_ID_BYTES <= size_bytes <= RESPONSE_BYTES_MAX:
            raise WireError(f"an answer of {size_bytes} bytes")
        return self._receive(size_bytes, deadline)

    def _receive(self, size_bytes: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < size_bytes:
            # A timeout of 0 would make the socket non-blocking, and its error another one.
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            # Bounded: the buffer is allocated before the bytes come.
            more = self._socket.recv(min(size_bytes - len(received), _RECEIVE_BYTES))
            if not more:
                raise ConnectionError(
                    "the connection was closed without an answer. "
                    "Is it a listener without TLS and SASL?"
                )
            received += more
        return bytes(received)
