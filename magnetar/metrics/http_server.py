"""A server of HTTP for scrapers and probes: a thread for each connection, and few connections.

A client that connects and sends nothing does not delay the others: a liveness probe that had to
wait for it would fail, and the process would be killed. Beyond `CONNECTIONS_MAX` the oldest
connection is dropped. A client that does not send or read for `SILENCE_SECONDS` is dropped too, and
one that trickles bytes after three times as long. No client's fault is written to standard error.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
from contextlib import suppress
from io import BufferedIOBase
from itertools import islice
from socketserver import ThreadingMixIn
from time import monotonic
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

from magnetar.logging import get_logger

SILENCE_SECONDS = 5.0
CONNECTIONS_MAX = 16

#: A version in what a client accepts that is no short number of digits and dots: prometheus-client
#: would fail over it.
_ODD_VERSION = re.compile(r"version=(?![0-9]{1,9}(?:\.[0-9]{1,9}){0,3}\s*(?:[;,]|$))")

_log = get_logger("metrics")


class _Answer(BufferedIOBase):
    """Writes an answer to a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            self._connection.sendall(data)
        except TimeoutError:
            # `wsgiref` takes this for a client that went away, and other errors for ours.
            raise ConnectionAbortedError("the client does not read its answer") from None
        return memoryview(data).nbytes


class Handler(WSGIRequestHandler):
    """One connection, which has one request."""

    def setup(self) -> None:
        self.request.settimeout(SILENCE_SECONDS)
        super().setup()
        self.wfile = _Answer(self.connection)

    def handle(self) -> None:
        deadline = threading.Timer(3 * SILENCE_SECONDS, _hang_up, (self.connection,))
        deadline.daemon = True
        deadline.start()
        try:
            super().handle()
        finally:
            deadline.cancel()

    def get_environ(self) -> dict[str, Any]:
        """Return the request, without an `Accept` header that cannot be understood."""
        environ = super().get_environ()
        if _ODD_VERSION.search(environ.get("HTTP_ACCEPT", "")):
            del environ["HTTP_ACCEPT"]
        return environ

    # The base class writes a line for each request to standard error.
    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("metrics asked for", request=format % args)


class HttpServer(ThreadingMixIn, WSGIServer):
    """Serves what arrives at a socket that listens already, by `handle_request`."""

    # A scrape that hangs must not keep the process alive.
    daemon_threads = True

    def __init__(self, listening: socket.socket, application: WSGIApplication) -> None:
        address = listening.getsockname()[:2]
        super().__init__(address, Handler, bind_and_activate=False)
        # The server's own socket is not bound.
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = address
        self.setup_environ()
        self.set_app(application)
        self._changing = threading.Lock()
        #: The connections and their threads, the oldest first.
        self._open: dict[Any, threading.Thread] = {}
        self._is_told = False

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; drop the oldest one where there are too many."""
        arguments = (request, client_address)
        thread = threading.Thread(target=self.process_request_thread, args=arguments, daemon=True)
        with self._changing:
            too_many = len(self._open) + 1 - CONNECTIONS_MAX
            for oldest in [*islice(self._open, max(too_many, 0))]:
                del self._open[oldest]
                _hang_up(oldest)
            self._open[request] = thread
        if too_many > 0 and not self._is_told:
            self._is_told = True
            told = "too many clients of metrics: the oldest are dropped"
            _log.warning(told, at_most=CONNECTIONS_MAX)
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection whose request is answered."""
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note a client that was dropped. The base class writes it to standard error."""
        _log.debug("a client of metrics was dropped", reason=str(sys.exception()))

    def end(self, bound_s: float) -> None:
        """Drop those that have not asked yet; return when the others are answered, or after the
        bound."""
        deadline_s = monotonic() + bound_s
        with self._changing:
            left = {**self._open}
        for request in left:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RD)
        for thread in left.values():
            thread.join(max(0.0, deadline_s - monotonic()))


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
