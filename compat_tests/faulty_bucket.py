"""An S3 server that fails: moto's, behind a proxy that does what networks and clouds do.

A request is refused before its effect, refused after it, or cut off after it. The proxy keeps no
state: the same request may succeed when it is made again.
"""

from __future__ import annotations

import http.client
import logging
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from moto.server import ThreadedMotoServer

BUCKET = "soak"
_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}
_TIMEOUT_S = 30.0


class Fault(Enum):
    """What happens to a request."""

    REFUSED_BEFORE = "503 before the effect"
    REFUSED_AFTER = "503 after the effect"
    CUT_AFTER = "cut off after the effect"


class FaultyBucket:
    """The proxy. `probability` may be set while it runs."""

    def __init__(self, port: int, seed: int) -> None:
        self.probability = 0.0
        #: How often each fault has happened.
        self.counts: Counter[Fault] = Counter()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                bucket.pass_on(self, port)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()

    def _chance(self) -> Fault | None:
        with self._lock:
            if self._random.random() >= self.probability:
                return None
            fault: Fault = self._random.choice([*Fault])
            self.counts[fault] += 1
            return fault

    def pass_on(self, request: BaseHTTPRequestHandler, port: int) -> None:
        """Answer one request."""
        body = request.rfile.read(int(request.headers.get("content-length", 0)))
        fault = self._chance()
        if fault is not Fault.REFUSED_BEFORE:
            behind = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
            headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
            behind.request(request.command, request.path, body, headers)
            answer = behind.getresponse()
            data, status = answer.read(), answer.status
            told = [(k, v) for k, v in answer.getheaders() if k.lower() not in _HOP]
            size = answer.headers.get("content-length", str(len(data)))
            behind.close()
        if fault is Fault.CUT_AFTER:
            request.close_connection = True
            return
        if fault is not None:
            status, data, told, size = 503, b"", [], "0"
        request.send_response_only(status)
        for name, value in told:
            request.send_header(name, value)
        request.send_header("Content-Length", size if request.command == "HEAD" else str(len(data)))
        request.end_headers()
        request.wfile.write(data)


@contextmanager
def faulty_bucket(seed: int) -> Iterator[FaultyBucket]:
    """Serve a bucket of the name `BUCKET`, at first without faults."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # It tells of each request.
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    made = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    made.request("PUT", f"/{BUCKET}", headers={"Host": "s3.amazonaws.com"})
    assert made.getresponse().status == 200
    bucket = FaultyBucket(port, seed)
    try:
        yield bucket
    finally:
        bucket.close()
        server.stop()
