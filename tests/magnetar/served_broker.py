"""A broker in a process of its own, and a client that may say anything to it."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from struct import Struct
from typing import Self, TypeVar

from magnetar.testing import BrokerProcess
from wire.message import Message
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.header import RequestHeader, ResponseHeader

TIMEOUT_S = 60.0
_SIZE = Struct(">i")
#: As /proc/net/tcp has them: ESTABLISHED, CLOSE_WAIT.
_NOT_CLOSED = frozenset({"01", "08"})

Response = TypeVar("Response", bound=Message)


class ServedBroker(BrokerProcess):
    """A broker to be ill-treated: watched, and at its end it must still stop well."""

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def resident_bytes(self) -> int:
        """Return the memory that the process holds."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024

    def until_clients_are_gone(self) -> None:
        """Wait until the broker has let go of every connection that its clients have closed.

        It learns of an end when it has read what came before: of many clients that sent much, later
        than they ended.
        """
        deadline_s = time.monotonic() + TIMEOUT_S
        while connections := self._connections():
            assert time.monotonic() < deadline_s, connections
            time.sleep(0.01)

    def _connections(self) -> list[str]:
        """Return the ends of connections that the broker has not closed, of this machine's."""
        own = f":{self.port:04X}"
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        return [line[1] for line in lines if line[1].endswith(own) and line[3] in _NOT_CLOSED]

    def serves(self) -> bool:
        """Whether it answers a client that behaves."""
        with Client(self.port) as client:
            return client.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0

    def __exit__(self, *raised: object) -> None:
        exit_code = self.stop()
        assert any(raised) or exit_code == 0, self.log


class Client:
    """One connection, on which bytes, frames and requests may be sent."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        """Send bytes as a frame of their size."""
        self.send(framed(frame))

    def send_request(self, request: Message, version: int) -> None:
        self._correlation_id += 1
        self.send_frame(encoded(request, version, self._correlation_id))

    def receive_frame(self) -> bytes:
        """Return the next frame. Raises EOFError where the broker has closed the connection."""
        (size_bytes,) = _SIZE.unpack(self._receive(_SIZE.size))
        return self._receive(size_bytes)

    def receive(self, response_class: type[Response], version: int) -> Response:
        """Return the next answer, which must be of that class and to the latest request."""
        frame = self.receive_frame()
        header, position = ResponseHeader.decode_from(frame, response_class.header_version(version))
        assert header.correlation_id == self._correlation_id
        return response_class.decode(frame[position:], version)

    def call(self, request: Message, response_class: type[Response], version: int) -> Response:
        self.send_request(request, version)
        return self.receive(response_class, version)

    def is_closed_by_broker(self) -> bool:
        """Whether the connection ends, without another answer. Waits for it."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def _receive(self, size_bytes: int) -> bytes:
        data = b""
        while len(data) < size_bytes:
            try:
                more = self.socket.recv(size_bytes - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise EOFError
            data += more
        return data


def framed(frame: bytes) -> bytes:
    return _SIZE.pack(len(frame)) + frame


def encoded(request: Message, version: int, correlation_id: int = 1) -> bytes:
    """Return header and body of a request: a frame without its size."""
    header = RequestHeader(
        request_api_key=request.api_key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id="stranger",
    )
    return header.encode(request.header_version(version)) + request.encode(version)
