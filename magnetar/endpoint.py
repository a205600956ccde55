"""An endpoint of OAuth: a file, or an address of HTTPS, read in bounded time and memory.

Everything here blocks: a broker calls it in a thread. HTTP without TLS is for this machine alone.
A machine in between could hand out keys of its own, or read a client's secret. Redirects are
not followed: they would leave the address that was named.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from ipaddress import ip_address
from threading import Timer
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

#: More than this is no answer: it is not read to its end.
ANSWER_BYTES_MAX = 1 << 20
#: The time for a connection and each of its handshakes, and then for the whole answer.
TIMEOUT_S = 10.0
_PORTS = {"http": 80, "https": 443}
_GOOD = (200, 201)


def trusting(cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """Return what TLS connections are made with that trust these authorities, else the system's.

    What is trusted is the same on each Python: from 3.13 on its defaults refuse certificates that
    lack an Authority Key Identifier, as companies' own often do. Java and OpenSSL take them. Before
    that, authorities that another one has signed are not trusted for themselves, as in Java.
    """
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class EndpointFailed(Exception):
    """Nothing usable came. The text says why, and names no secret. `body`: what was answered."""

    def __init__(self, text: str, body: bytes = b"") -> None:
        super().__init__(text)
        self.body = body


class Endpoint(NamedTuple):
    """A checked URL. `host` is empty for a file."""

    scheme: str
    host: str
    port: int
    #: The path of a file; for other schemes path and query.
    path: str
    #: As it was written.
    url: str

    @property
    def is_file(self) -> bool:
        return self.scheme == "file"

    def __str__(self) -> str:
        """Return the URL without its query, which may hold a secret."""
        path = self.path.partition("?")[0]
        if self.is_file:
            return f"file:{path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{path}"


def parse_endpoint(url: str) -> Endpoint:
    """Return the endpoint of a URL. ValueError, whose text continues a sentence after its name."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ValueError("is no URL") from None
    if parts.scheme == "file":
        return _file(parts)
    if parts.scheme not in _PORTS:
        raise ValueError("is neither file:, https: nor http:")
    host = parts.hostname or ""
    if not host or not url.isascii():
        raise ValueError("names no host, or one in characters outside of ASCII")
    if parts.username is not None:
        raise ValueError("has a user name or password in it: they do not belong there")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ValueError(
            "is http: to another machine, where anyone on the way could change what comes."
            " Use https:"
        )
    query = f"?{parts.query}" if parts.query else ""
    path = (parts.path or "/") + query
    return Endpoint(parts.scheme, host, port or _PORTS[parts.scheme], path, url.strip())


def read_endpoint(
    endpoint: Endpoint,
    context: Callable[[], ssl.SSLContext],
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """Return what the endpoint holds; a `body` is posted. Raises EndpointFailed.

    `context` makes what HTTPS is spoken with.
    """
    if endpoint.is_file:
        return _read_file(endpoint.path)
    try:
        return _ask(endpoint, context, headers or {}, body, timeout_s)
    except TimeoutError:
        raise EndpointFailed(f"{endpoint} did not answer within {timeout_s:g} s") from None
    except ssl.SSLCertVerificationError as error:
        reason = f"its certificate is not trusted: {error.verify_message}"
        raise EndpointFailed(f"{endpoint}: {reason}") from None
    except OSError as error:
        raise EndpointFailed(f"cannot read {endpoint}: {error.strerror or error}") from None
    except (HTTPException, ValueError) as error:
        kind = type(error).__name__
        raise EndpointFailed(f"{endpoint} does not speak HTTP, or broke off ({kind})") from None


def _file(parts: SplitResult) -> Endpoint:
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise ValueError("is a file: URL without a path, as file:/etc/magnetar/jwks.json has one")
    return Endpoint("file", "", 0, unquote(parts.path), parts.geturl())


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_file(path: str) -> bytes:
    try:
        # Without waiting: a pipe would block for its writer, and is refused.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise EndpointFailed(f"{path} is no file")
            data = file.read(ANSWER_BYTES_MAX + 1)
    except OSError as error:
        raise EndpointFailed(f"cannot read {path}: {error.strerror}") from None
    return _bounded(path, data)


def _ask(
    endpoint: Endpoint,
    context: Callable[[], ssl.SSLContext],
    headers: Mapping[str, str],
    body: bytes | None,
    timeout_s: float,
) -> bytes:
    host, port = endpoint.host, endpoint.port
    connection: HTTPConnection
    if endpoint.scheme == "https":
        connection = HTTPSConnection(host, port, timeout=timeout_s, context=context())
    else:
        connection = HTTPConnection(host, port, timeout=timeout_s)
    with closing(connection):
        connection.connect()
        limit = _Deadline(connection.sock, timeout_s)
        try:
            method = "GET" if body is None else "POST"
            asked = {"Accept": "application/json", "Connection": "close", **headers}
            connection.request(method, endpoint.path, body, asked)
            with connection.getresponse() as response:
                answer = _answer(endpoint, response)
        except (OSError, HTTPException):
            limit.check()
            raise
        finally:
            limit.cancel()
        # To `http.client` the end of a connection ends a header, too.
        limit.check()
        return answer


class _Deadline:
    """Ends a connection after a time, whatever arrives until then.

    A timeout of the socket holds for each piece: a peer that trickles would have no end.
    """

    def __init__(self, connected: socket.socket, timeout_s: float) -> None:
        self._connected = connected
        self._is_over = False
        self._timer = Timer(timeout_s, self._hang_up)
        self._timer.daemon = True
        self._timer.start()

    def check(self) -> None:
        """Raise TimeoutError where the connection was ended."""
        if self._is_over:
            raise TimeoutError

    def cancel(self) -> None:
        self._timer.cancel()
        del self._timer  # It leads back here: a cycle.

    def _hang_up(self) -> None:
        self._is_over = True
        with suppress(OSError):
            self._connected.shutdown(socket.SHUT_RDWR)


def _answer(endpoint: Endpoint, response: HTTPResponse) -> bytes:
    data = _bounded(str(endpoint), response.read(ANSWER_BYTES_MAX + 1))
    if response.length:
        raise IncompleteRead(data, response.length)
    if response.status in _GOOD:
        return data
    advice = ", and redirects are not followed" if 300 <= response.status < 400 else ""
    raise EndpointFailed(f"{endpoint} answers with status {response.status}{advice}", data)


def _bounded(name: str, data: bytes) -> bytes:
    if len(data) > ANSWER_BYTES_MAX:
        raise EndpointFailed(f"{name} has more than {ANSWER_BYTES_MAX} bytes")
    return data
