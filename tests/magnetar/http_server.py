"""A server that answers every connection with the same bytes, whatever it is asked."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """Return an answer of HTTP."""
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class HttpServer:
    """Answers in threads, until the end of its block."""

    def __init__(
        self,
        reply: bytes | Callable[[socket.socket, bytes], None],
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`reply` is an answer, or does something with a connection and what it asks."""
        self.reply = reply
        self._context = context
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        #: Every request, from its first line on.
        self.asked: list[bytes] = []
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}/path?query=1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for connected in self._open:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            connected.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listening.accept()
                self._open.append(connected)
                threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with suppress(OSError):
            if self._context is not None:
                connected = self._context.wrap_socket(connected, server_side=True)
            request = _receive(connected)
            self.asked.append(request)
            if callable(self.reply):
                self.reply(connected, request)
            else:
                connected.sendall(self.reply)
                connected.shutdown(socket.SHUT_RDWR)
                connected.close()


def _receive(connected: socket.socket) -> bytes:
    """Return a request with its body, which comes in a packet of its own."""
    request = b""
    while True:
        head, end, body = request.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        if end and len(body) >= (int(length[1]) if length else 0):
            return request
        more = connected.recv(1 << 16)
        if not more:
            return request
        request += more


def silence(connected: socket.socket, request: bytes) -> None:
    """Answer nothing, ever."""


def trickle(connected: socket.socket, request: bytes) -> None:
    """Answer a header without end, a byte now and then."""
    pause = threading.Event()
    connected.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not pause.wait(0.05):
        connected.sendall(b"x")


def flood(connected: socket.socket, request: bytes) -> None:
    """Answer without end, as fast as it is taken."""
    connected.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connected.sendall(b"[" * 65536)
