"""`GET /metrics` over HTTP, by prometheus-client, in a thread of its own.

The address is bound before the broker starts, so that a taken one is reported at once; the library
is imported once the broker is ready. Requests are served one at a time. A client that does not send
or read for `SILENCE_SECONDS` is dropped, and one that trickles bytes after three times as long: the
endpoint is for one scraper, not for the world.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from logstore.disk.pools import HOUSEKEEPING
from magnetar.config.load import ConfigError
from magnetar.logging import get_logger
from magnetar.metrics.of_nodes import Gather, NodesCollector

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class OtherNodes(NamedTuple):
    """The nodes whose metrics the endpoint serves beside its own: how each is reached."""

    own_id: int
    connect: Mapping[int, Callable[[], socket.socket]]


SILENCE_SECONDS = 5.0
#: How long the event loop may take; then the scrape fails, and the next one asks again.
GATHERING_SECONDS = 5.0
_BACKLOG = 5
#: A stop is noticed after so long at most.
_POLL_SECONDS = 0.2

_log = get_logger("metrics")


class MetricsEndpoint:
    """One address that serves a broker's metrics."""

    def __init__(self, host: str, port: int) -> None:
        """Bind the address. Raises ConfigError where that fails."""
        try:
            self._socket = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=_BACKLOG,
            )
        except OSError as error:
            raise ConfigError(
                f"metrics.listen: cannot listen on {host}:{port}: {error.strerror}"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()

    def start(self, gather: Gather, others: OtherNodes | None = None) -> None:
        """Answer scrapes with what `gather` returns, and `others` have; returns at once."""
        loop = asyncio.get_running_loop()
        # A daemon: a scrape that hangs must not keep the process alive.
        self._thread = threading.Thread(
            target=self._serve, args=(gather, loop, others), name="metrics", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """Answer no more; return when the request under way is answered, or after the bound."""
        self._is_stopped.set()
        if self._thread is not None:
            # In a thread: the endpoint may be waiting for this very event loop.
            await HOUSEKEEPING.run(partial(self._thread.join, SILENCE_SECONDS))
        self._socket.close()

    def close(self) -> None:
        """Give the address back, in a process that does not serve it."""
        self._socket.close()

    def _serve(
        self, gather: Gather, loop: asyncio.AbstractEventLoop, others: OtherNodes | None
    ) -> None:
        from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

        class Handler(WSGIRequestHandler):
            timeout = SILENCE_SECONDS

            def handle(self) -> None:
                deadline = threading.Timer(3 * SILENCE_SECONDS, self._hang_up)
                deadline.daemon = True
                deadline.start()
                try:
                    super().handle()
                finally:
                    deadline.cancel()

            def _hang_up(self) -> None:
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

            # The base class writes a line for each request to standard error.
            def log_message(self, format: str, *args: Any) -> None:
                _log.debug("metrics asked for", request=format % args)

        # With `auto_describe` registering would gather once, before the first scrape.
        registry = CollectorRegistry(auto_describe=False)
        own = (_Collector(gather, loop), ProcessCollector(registry=None))
        if others is None:
            for each in own:
                registry.register(each)
        else:
            registry.register(NodesCollector(others.own_id, own, others.connect))
        server = WSGIServer(self._socket.getsockname()[:2], Handler, bind_and_activate=False)
        # The server's own socket is not bound; the bound one is older than the broker.
        server.socket.close()
        server.socket = self._socket
        server.server_name, server.server_port = self._socket.getsockname()[:2]
        server.setup_environ()
        server.set_app(make_wsgi_app(registry))
        # Not `serve_forever`: its `shutdown` blocks the caller, which is the event loop.
        server.timeout = _POLL_SECONDS
        while not self._is_stopped.is_set():
            server.handle_request()


class _Collector:
    """Gathers on the event loop, for the thread that answers."""

    def __init__(self, gather: Gather, loop: asyncio.AbstractEventLoop) -> None:
        self._gather = gather
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        asked = asyncio.run_coroutine_threadsafe(self._gather(), self._loop)
        try:
            yield from asked.result(GATHERING_SECONDS)
        except (TimeoutError, CancelledError):
            # The event loop is late already: it need not gather for a scrape that has failed.
            asked.cancel()
            _log.warning("metrics not gathered", reason="the event loop did not get to it")
            raise
